"""The CUDA version of an image by what a running container of it really has.

The library that a process has mapped is certain. CUDA_VERSION, which NVIDIA's base images set, is
the base image's word: an application may bring another CUDA in its own wheels, and then what is
mapped counts.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gpudoctor.facts.node.versions import CudaVersion, parse_cuda
from gpudoctor.report import Evidence

_VARIABLES = ("CUDA_VERSION", "NV_CUDA_CUDART_VERSION", "NV_CUDA_LIB_VERSION")
_CUDART, _LIBCUDA = "libcudart", "libcuda"


class ImageCuda(msgspec.Struct, frozen=True, kw_only=True):
    """The CUDA of an image, where it was seen, and the libcuda that its process has loaded.

    A libcuda of another version than the node's driver is the image's cuda-compat at work.
    """

    toolkit: CudaVersion
    evidence: Evidence
    libcuda: str | None = None


def read(
    pid: str, libraries: Mapping[str, str] | None, environment: Mapping[str, str] | None
) -> ImageCuda | None:
    """Return what a container's first process tells of its image's CUDA, None if nothing."""
    known = libraries or {}
    toolkit = parse_cuda(known.get(_CUDART, ""))
    evidence = Evidence(f"/proc/{pid}/maps", _CUDART, known.get(_CUDART), "loaded")
    for name in _VARIABLES:
        written = (environment or {}).get(name, "").partition("-")[0]
        if toolkit is None and (toolkit := parse_cuda(written)) is not None:
            evidence = Evidence(f"/proc/{pid}/environ", name, written, "set by the image")
    if toolkit is None:
        return None
    return ImageCuda(toolkit=toolkit, evidence=evidence, libcuda=known.get(_LIBCUDA))
