"""Which environment variables of a workload may be read: the others may be secrets."""

from __future__ import annotations

PREFIXES = (
    "NCCL_",
    "UCX_",
    "CUDA_",
    "NVIDIA_",
    "OMPI_",
    "FI_",
    "TORCH_NCCL_",
    "PMI_",
    "SLURM_",
    "OFI_NCCL_",
    "NV_CUDA_",
    "NV_LIBNCCL_",
)


def allowed(environ: bytes) -> dict[str, str]:
    """Return the readable variables of a /proc/PID/environ; the rest is dropped at once."""
    pairs = (entry.partition("=") for entry in environ.decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs if name.startswith(PREFIXES)}


def encode(variables: dict[str, str]) -> bytes:
    """Return variables in the form of /proc/PID/environ."""
    return "".join(f"{name}={value}\0" for name, value in variables.items()).encode()
