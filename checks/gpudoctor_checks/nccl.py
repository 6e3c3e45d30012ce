"""What NCCL's log says: which network carries the data and why, GDR, and what broke.

The rules stand in three modules by subject; importing them fills the set.
"""

from gpudoctor_checks import nccl_failures, nccl_gdr, nccl_network
from gpudoctor_checks.nccl_log import CHECKS

__all__ = ["CHECKS", "nccl_failures", "nccl_gdr", "nccl_network"]
