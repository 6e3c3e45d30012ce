"""CUDA's and NVML's own answers, each with its number, its names and its sentence: the tables.

One row serves every program: whether it prints the number, a name of either API or the sentence,
what is meant is the same. Numbers, names and sentences are those of the CUDA runtime up to 13.5
and of NVML 13; numbers that CUDA 5.0 to 10.0 gave to the same answer stand beside today's.
"""

from __future__ import annotations

import re

import msgspec

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z]*")


class Status(msgspec.Struct, frozen=True):
    """One answer: its finding, and what programs print of it.

    `names` are the endings of the constants (cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE: NoDevice).
    `sentence` is a pattern with a blank between words; `alone` says that it can mean nothing else.
    """

    finding: str
    codes: tuple[int, ...]
    names: tuple[str, ...]
    sentence: str
    alone: bool = True

    def name_pattern(self, between: str) -> str:
        """A pattern for any of the names, with `between` between their words."""
        return "|".join(between.join(_WORD.findall(name)) for name in self.names)

    def sentence_pattern(self) -> str:
        """The sentence with hyphens, underscores or line breaks in place of its blanks."""
        return self.sentence.replace(" ", r"[\W_]+")


def _mps(codes: tuple[int, ...], name: str, sentence: str) -> Status:
    return Status("mps-daemon-unreachable", codes, (name,), sentence)


def _fault(codes: tuple[int, ...], names: tuple[str, ...], sentence: str) -> Status:
    return Status("gpu-application-fault", codes, names, sentence)


CUDA = (
    Status("gpu-out-of-memory", (2,), ("MemoryAllocation", "OutOfMemory"), "out of memory", False),
    Status("cuda-unknown-error", (3,), ("InitializationError", "NotInitialized"),
           "initiali[sz]ation error", False),
    Status("no-code-for-gpu", (8, 98), ("InvalidDeviceFunction",), "invalid device function"),
    Status("device-ordinal-invalid", (10, 101), ("InvalidDevice",), "invalid device ordinal"),
    Status("cuda-unknown-error", (30, 999), ("Unknown",), "unknown error", False),
    Status("libcuda-kernel-mismatch", (34,), ("StubLibrary",), "CUDA driver is a stub library"),
    Status("driver-too-old", (35,), ("InsufficientDriver",),
           "CUDA driver version is insufficient for CUDA runtime version"),
    Status("minor-version-compat-limits", (36,), ("CallRequiresNewerDriver",),
           "API call is not supported in the installed CUDA driver"),
    Status("no-devices", (38, 100), ("NoDevice",), "no CUDA capable device is detected"),
    Status("gpu-busy", (46,), ("DevicesUnavailable", "DeviceUnavailable"),
           r"CUDA capable devices? (?:s )?(?:is are|is|are) busy or unavailable"),
    Status("no-code-for-gpu", (47, 200), ("InvalidKernelImage", "InvalidImage"),
           "device kernel image is invalid"),
    Status("no-code-for-gpu", (48, 209), ("NoKernelImageForDevice", "NoBinaryForGpu"),
           "no kernel image is available"),
    Status("gpu-uncorrectable-ecc", (214,), ("ECCUncorrectable",), "uncorrectable ECC error"),
    Status("p2p-disabled", (217,), ("PeerAccessUnsupported",),
           "peer access is not supported between these two devices"),
    Status("ptx-newer-than-driver", (218,), ("InvalidPtx",), "PTX JIT compilation failed"),
    Status("nvlink-error", (220,), ("NvlinkUncorrectable",), "uncorrectable NVLink error"),
    Status("driver-libs-not-injected", (221,), ("JitCompilerNotFound",),
           "PTX JIT compiler library not found"),
    Status("ptx-newer-than-driver", (222,), ("UnsupportedPtxVersion",),
           "PTX was compiled with an unsupported toolchain"),
    Status("no-code-for-gpu", (223,), ("JitCompilationDisabled",),
           "PTX JIT compilation was disabled"),
    Status("nvlink-error", (226,), ("Contained",), "invalid access of peer GPU memory over nvlink"),
    # what TensorFlow's stub of libcuda answers where there is none to load
    Status("driver-libs-not-injected", (303,), ("SharedObjectInitFailed",),
           "shared object initiali[sz]ation failed"),
    Status("cuda-unknown-error", (304,), ("OperatingSystem",),
           "OS call failed or operation not supported on this OS"),
    _fault((77, 700), ("IllegalAddress",), "illegal memory access was encountered"),
    _fault((702,), ("LaunchTimeout",), "the launch timed out and was terminated"),
    _fault((59, 710), ("Assert",), "device side assert triggered"),
    _fault((72, 714), ("HardwareStackError",), "hardware stack error"),
    _fault((73, 715), ("IllegalInstruction",), "illegal instruction was encountered"),
    _fault((74, 716), ("MisalignedAddress",), "misaligned address"),
    _fault((75, 717), ("InvalidAddressSpace",), "invalid address space"),
    _fault((76, 718), ("InvalidPc",), "invalid program counter"),
    _fault((719,), ("LaunchFailure", "LaunchFailed"), "unspecified launch failure"),
    Status("fabric-not-ready", (802,), ("SystemNotReady",), "system not yet initiali[sz]ed"),
    Status("libcuda-kernel-mismatch", (803,), ("SystemDriverMismatch",),
           "unsupported display driver cuda driver combination"),
    Status("compat-not-supported-on-gpu", (804,), ("CompatNotSupportedOnDevice",),
           "forward compatibility was attempted on non supported HW"),
    _mps((805,), "MpsConnectionFailed", "MPS client failed to connect"),
    _mps((806,), "MpsRpcFailure", "between the MPS server and the MPS client"),
    _mps((807,), "MpsServerNotReady", "MPS server (?:is not ready|failed)"),
    _mps((808,), "MpsMaxClientsReached", "required to create MPS client have been exhausted"),
    _mps((809,), "MpsMaxConnectionsReached", "to support device connections have been exhausted"),
    _mps((810,), "MpsClientTerminated", "MPS client has been terminated by the server"),
)  # fmt: skip
"""CUDA's answers that name a cause. Those about a program's own arguments are not among them."""

NVML = (
    Status("driver-library-mismatch", (18,), ("LibRmVersionMismatch",),
           "driver library version mismatch"),
    Status("driver-not-loaded", (9,), ("DriverNotLoaded",), "driver not loaded"),
    Status("driver-libs-not-injected", (12,), ("LibraryNotFound",), "library not found"),
    Status("gpu-lost", (15,), ("GpuIsLost",), "GPU is lost"),
    Status("gpu-needs-reset", (16,), ("ResetRequired", "GpuRequiresReset"), "GPU requires reset"),
    Status("driver-not-usable", (17,), ("OperatingSystem",),
           "(?:access blocked by the operating system|operating system has blocked)"),
    # Of a single reading or setting these say only that this user may not have it.
    Status("driver-not-usable", (4,), ("NoPermission",), "insufficient permissions", False),
    Status("cgroup-device-access-lost", (999,), ("Unknown",), "unknown error(?! code)", False),
)  # fmt: skip
"""NVML's answers; `alone` here: whatever NVML was asked, not only to start."""
