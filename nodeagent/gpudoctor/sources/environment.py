"""Which environment variables of a workload may be read: the others may be secrets.

One list for pod specs, processes and recordings, so that a recording says what was said live.
"""

from __future__ import annotations

import re

# Those that tune GPUs, networks and engines, and those by which the members of a job meet.
_READABLE = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|OFI_NCCL|NV_LIBNCCL|NV_CUDA|CUDA|NVIDIA|HIP|ROCR|GPU|UCX|FI|GLOO|OMPI"
    r"|PMI|SLURM|LWS|PET|VLLM|SGLANG)_\w+"
    r"|LD_LIBRARY_PATH|(TENSOR|PIPELINE|DATA)_PARALLEL_SIZE|(TP|PP|DP)_SIZE|NUM_SHARD"
    r"|NPROC_PER_NODE|NNODES|WORLD_SIZE|OMP_NUM_THREADS|MASTER_ADDR|RAY_ADDRESS"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL")


def is_readable(name: str) -> bool:
    """Whether the value of a variable of this name may be read."""
    return _READABLE.fullmatch(name) is not None and _SECRET.search(name) is None


def allowed(environ: bytes) -> dict[str, str]:
    """Return the readable variables of a /proc/PID/environ; the rest is dropped at once."""
    pairs = (entry.partition("=") for entry in environ.decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs if is_readable(name)}


def encode(variables: dict[str, str]) -> bytes:
    """Return variables in the form of /proc/PID/environ."""
    return "".join(f"{name}={value}\0" for name, value in variables.items()).encode()
