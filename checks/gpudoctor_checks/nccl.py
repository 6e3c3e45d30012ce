"""What NCCL's log says: which network carries the data and why, GDR, and what broke.

The rules stand in modules by subject; importing them fills the set.
"""

from gpudoctor_checks import (
    nccl_fabric,
    nccl_failures,
    nccl_gdr,
    nccl_network,
    nccl_progress,
    nccl_rails,
    nccl_timeouts,
)
from gpudoctor_checks.nccl_log import CHECKS

__all__ = [
    "CHECKS",
    "nccl_fabric",
    "nccl_failures",
    "nccl_gdr",
    "nccl_network",
    "nccl_progress",
    "nccl_rails",
    "nccl_timeouts",
]
