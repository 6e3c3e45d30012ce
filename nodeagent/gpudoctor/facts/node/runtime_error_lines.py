"""Recognises what runtimes, toolkit, device plugin, NVML and CUDA print when a GPU cannot be used.

Texts are those of libnvidia-container, nvidia-container-toolkit, containerd, CRI-O, Docker, the
k8s-device-plugin, nvidia-smi and the CUDA runtime up to 13.5, and what PyTorch makes of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpudoctor.facts.node.runtime_errors import RecognisedError

_MAX_LINE = 4096
_MAX_TEXT = 400
_MAX_CAUSES = 256

# The first that fits a line names it: the special before the general.
_ERRORS: tuple[tuple[str, str], ...] = (
    (
        "image-requirement-unsatisfied",
        r"unsatisfied condition: ?(?P<wanted>[^(;]+?)(?= ?\(|, please|: unknown|;|$)"
        r"|requirement error: (?!.*unsatisfied condition)",
    ),
    (
        "driver-library-mismatch",
        r"driver/library version mismatch|lib_?rm_?version_?mismatch|NVRM: API mismatch",
    ),
    (
        "fabric-manager-version-mismatch",
        r"fabric ?manager.*version"
        r".*(?:do(?:es)?n.?t match|do(?:es)? not match|mismatch|incompatible)",
    ),
    (
        "fabric-not-ready",
        r"\bError 802:|system not yet initialized|cudaErrorSystemNotReady"
        r"|CUDA_ERROR_SYSTEM_NOT_READY",
    ),
    (
        "libcuda-kernel-mismatch",
        r"\bError 803:|unsupported display driver / cuda driver combination"
        r"|cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
        r"|CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY",
    ),
    (
        "compat-not-supported-on-gpu",
        r"\bError 804:|forward compatibility was attempted on non supported HW"
        r"|cudaErrorCompatNotSupportedOnDevice|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
    ),
    (
        "ptx-newer-than-driver",
        r"PTX was compiled with an unsupported toolchain|cudaErrorUnsupportedPtxVersion"
        r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|Unsupported \.version \d",
    ),
    (
        "minor-version-compat-limits",
        r"API call is not supported in the installed CUDA driver|cudaErrorCallRequiresNewerDriver",
    ),
    (
        "driver-too-old",
        r"CUDA driver version is insufficient for CUDA runtime version"
        r"|NVIDIA driver on your system is too old|cudaErrorInsufficientDriver",
    ),
    (
        "no-code-for-gpu",
        r"no kernel image is available|cudaErrorNoKernelImageForDevice"
        r"|CUDA_ERROR_NO_BINARY_FOR_GPU|device kernel image is invalid|cudaErrorInvalidKernelImage"
        r"|is not compatible with the current PyTorch installation"
        r"|invalid value for --gpu-architecture"
        r"|ptxas fatal\s*: Value 'sm_\d+\w?' is not defined",
    ),
    (
        "cgroup-device-access-lost",
        r"Failed to initialize NVML: ?unknown error\b(?! code)",
    ),
    (
        "host-driver-libs-missing",
        r"nvidia-container-cli: initialization error: load library failed: (?P<library>lib[\w.-]+)"
        r"|load library failed: libnvidia-ml\.so"
        r"|nvidia-container-cli: initialization error: cannot open shared object"
        r"|failed to locate (?P<driver_library>libcuda\.so[\w.]*): .*not found",
    ),
    (
        "driver-not-loaded",
        r"couldn.?t communicate with the NVIDIA driver"
        r"|(?:nvml error|initialize NVML|initialization error): ?(?:error_)?driver[ _]not[ _]loaded"
        r"|NVML_?Error_?Driver_?Not_?Loaded|modprobe: FATAL: Module nvidia not found"
        r"|NVIDIA kernel module .{0,20}not loaded",
    ),
    (
        "driver-not-usable",
        r"nvidia-container-cli: (?:initialization|detection|mount|ldcache) error: "
        r"(?:driver|driver rpc|rpc) error|driver rpc error"
        # this program runs on the host, where no container's device rules can be the cause
        r"|nvidia-container-cli: (?:.* error: )?nvml error: ?unknown error"
        r"|initialize NVML: ?GPU access blocked by the operating system"
        r"|NVML_?Error_?Operating_?System"
        r"|(?:nvml error|initialize NVML): ?insufficient permissions|NVML_?Error_?No_?Permission"
        r"|nvidia-container-cli: .*timed out",
    ),
    (
        "runtime-handler-missing",
        r"no runtime for \"(?P<handler>[^\"]+)\" is configured"
        r"|failed to find runtime handler (?P<crio>\S+) from runtime list"
        r"|RuntimeHandler \"(?P<shim>[^\"]+)\" not supported"
        r"|unknown(?: or invalid)? runtime(?: name:| specified) ?\"?(?P<docker>[\w.-]+)",
    ),
    (
        "cdi-device-not-in-spec",
        r"unresolvable CDI devices? (?P<device>[^\s,\"]+)|failed to inject CDI devices"
        r"|CDI device injection failed|unresolvable CDI device"
        # the spec names a device node that has gone since it was written
        r"|failed to stat CDI host device \"(?P<node>[^\"]+)\"",
    ),
    (
        "toolkit-not-installed",
        r"could not select device driver \"[^\"]*\" with capabilities: \[\[[^\]]*gpu"
        r"|exec: \"?nvidia-container-(?:runtime|runtime-hook|cli)\"?: executable file not found"
        r"|exec:? \"?[\w/.-]*/nvidia-container-(?:runtime|cli)[\w-]*\"?: (?:stat .*)?no such file"
        r"|nvidia-container-(?:runtime|toolkit|cli)[\w-]*\"?: (?:command )?not found"
        r"|inject NVIDIA hook: stat [\w/.-]*nvidia-container[\w-]*: no such file"
        r"|failed to discover GPU vendor from CDI: no known GPU vendor",
    ),
    (
        "inotify-limit",
        r"(?:FS|fsnotify|inotify|file) ?watcher(?: for [\w/.-]+)?: "
        r"(?:too many open files|no space left)"
        r"|inotify_(?:init1?|add_watch)\b.*(?:too many open files|no space left|EMFILE|ENOSPC)"
        r"|inotify instances? limit",
    ),
    (
        "gpu-lost",
        r"\bGPU is lost\b|GPU_IS_LOST|GpuIsLost|fallen off the bus"
        r"|Unable to determine the device handle for GPU\s*(?:\d{1,3}: ?)?"
        r"(?P<device>[\dA-F]{3,8}:[\dA-F]{2}:[\dA-F]{2})",
    ),
    (
        "driver-libs-not-injected",
        r"libnvidia-ml\.so[.\d]*: cannot open shared object|could not load NVML library"
        r"|NVML Shared Library Not Found|NVML_?Error_?Library_?Not_?Found"
        r"|initialize NVML: ?error_library_not_found|libcuda\.so[.\d]*: cannot open shared object"
        r"|Found no NVIDIA driver on your system|exec: \"nvidia-smi\": executable file not found"
        r"|nvidia-smi: (?:command )?not found|PTX JIT compiler library not found"
        r"|did you set the docker default runtime to .?nvidia"
        r"|did you configure the NVIDIA Container Toolkit\?"
        r"|Could not find cuda drivers on your machine|libcuda\.so cannot found"
        r"|couldn.?t find libnvidia-ml\.so library|CUDA driver library cannot be found",
    ),
    (
        "module-signature-rejected",
        r"Key was rejected by service|could not insert '?nvidia[\w-]*'?: Required key not available"
        r"|Loading of (?:unsigned module|module with \w+ key) is rejected",
    ),
    ("nouveau-bound", r"Nouveau kernel driver is currently in use"),
    (
        "gpu-uncorrectable-ecc",
        r"uncorrectable ECC error encountered|cudaErrorECCUncorrectable"
        r"|CUDA_ERROR_ECC_UNCORRECTABLE",
    ),
    (
        "nvlink-error",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE",
    ),
    (
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE",
    ),
    (
        "no-devices",
        r"No devices were found|no CUDA-capable device is detected|cudaErrorNoDevice"
        r"|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available|No devices found\. Waiting indefinitely",
    ),
    (
        "device-list-stale",
        r"nvidia-container-cli(?:\.real)?: device error: (?P<device>\S+): unknown device",
    ),
    (
        "device-ordinal-invalid",
        r"invalid device ordinal|cudaErrorInvalidDevice\b|CUDA_ERROR_INVALID_DEVICE\b",
    ),
    (
        "gpu-out-of-memory",
        r"CUDA out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation"
        r"|CUDA_ERROR_OUT_OF_MEMORY",
    ),
    (
        "gpu-application-fault",
        r"an illegal memory access was encountered|an illegal instruction was encountered"
        r"|unspecified launch failure|misaligned address|device-side assert triggered"
        r"|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorLaunchFailure"
        r"|CUDA_ERROR_LAUNCH_FAILED",
    ),
    (
        "cuda-unknown-error",
        r"CUDA unknown error|\bError 999:|cudaErrorUnknown\b|CUDA_ERROR_UNKNOWN\b"
        r"|CUDA error: unknown error|failed to initialize CUDA: unknown error"
        r"|cuda driver library init failure: 999\b|cudaGetDeviceCount returned (?:30|304|999)\b"
        r"|THCudaCheck FAIL .*error=(?:30|999) : unknown error|CUDA_ERROR_OPERATING_SYSTEM\b"
        r"|OS call failed or operation not supported on this OS",
    ),
    (
        "toolkit-setup-failed",  # what no cause above explains
        r"nvidia-container-cli: (?P<step>[a-z]+) error: (?P<reason>[^:\\]{1,120})",
    ),
)  # fmt: skip

_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _ERRORS)
_ALIASES = {
    "crio": "handler", "docker": "handler", "shim": "handler",
    "driver_library": "library", "node": "device",
}  # fmt: skip


def recognise(line: str) -> RecognisedError | None:
    """Return the cause that a line names, None for any other line."""
    line = line[:_MAX_LINE]
    for name, pattern in _PATTERNS:
        if match := pattern.search(line):
            values = {
                _ALIASES.get(key, key): text.strip()
                for key, text in match.groupdict().items()
                if text
            }
            return RecognisedError(name, line.strip()[:_MAX_TEXT], values)
    return None


def recognise_all(lines: Iterable[str]) -> Iterator[tuple[int, RecognisedError]]:
    """Return the recognised lines with their numbers, from 1, the first of each cause."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for number, line in enumerate(lines, 1):
        found = recognise(line)
        if found is None:
            continue
        key = found.name, tuple(sorted(found.values.items()))
        if key not in seen and len(seen) < _MAX_CAUSES:
            seen.add(key)
            yield number, found
