"""The three things that have to fit, a driver, an image's CUDA and a GPU, and how they are joined.

Filled from command-line options, from NVML, or from a pod's image and its node's labels; what is
not known is None. The rules that judge it are `gpudoctor_checks.compatibility`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gpudoctor.facts.node.cuda import Gpu
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Certainty, Evidence, Subject


class Activation(StrEnum):
    """Who puts the image's cuda-compat in front: the toolkit's hook, which first looks whether
    it fits, or the image's own LD_LIBRARY_PATH, which does not.
    """

    HOOK = "hook"
    LD_LIBRARY_PATH = "ld_library_path"


class RuntimeMode(StrEnum):
    """The container toolkit's mode; only legacy and csv evaluate NVIDIA_REQUIRE_*."""

    LEGACY = "legacy"
    CSV = "csv"
    JIT_CDI = "jit-cdi"
    CDI = "cdi"


class KernelModule(StrEnum):
    """The flavour of nvidia.ko."""

    OPEN = "open"
    PROPRIETARY = "proprietary"


class CudaStack(msgspec.Struct, frozen=True, kw_only=True):
    """A driver, the CUDA version of an image, and a GPU.

    `level` is the CUDA level that the driver itself reports; without it the driver's branch
    tells. `requirements` are the values of the image's NVIDIA_REQUIRE_* variables, which are
    evaluated in the runtime modes that do; `compat_package` says that the cuda-compat of the
    image's own level lies in it. `needs_ptx_jit` and `has_ptx` are None where unknown.
    `certainty` is that of the image's CUDA version: an image tag alone is a guess.
    """

    subject: Subject
    toolkit: CudaVersion
    driver: DriverVersion | None = None
    level: CudaVersion | None = None
    gpu: Gpu | None = None
    compat_package: bool = False
    activation: Activation = Activation.HOOK
    mode: RuntimeMode = RuntimeMode.LEGACY
    requirements: tuple[str, ...] = ()
    requirements_disabled: bool = False
    kernel_module: KernelModule | None = None
    needs_ptx_jit: bool | None = None
    has_ptx: bool | None = None
    related: tuple[Subject, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    certainty: Certainty = Certainty.CERTAIN
