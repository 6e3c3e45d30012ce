"""What runtimes, toolkit, device plugin, NVML and CUDA print when a GPU cannot be used: the table.

Texts are those of libnvidia-container, nvidia-container-toolkit, containerd, CRI-O, Docker, the
k8s-device-plugin, nvidia-smi, NVIDIA's images and the CUDA runtime up to 13.5, and what PyTorch,
TensorFlow, JAX, TensorRT, vLLM, llama.cpp and others make of them.
"""

from __future__ import annotations

import re

# The first that fits a line names it: the special before the general.
ERRORS: tuple[tuple[str, str], ...] = (
    (
        "image-requirement-unsatisfied",
        r"unsatisfied condition: ?(?P<wanted>[^(;]+?)(?= ?\(|, please|: unknown|;|$)"
        r"|requirement error: (?!.*unsatisfied condition)",
    ),
    (
        "driver-library-mismatch",
        r"driver/library version mismatch|lib_?rm_?version_?mismatch|NVRM: API mismatch"
        # TensorFlow compares libcuda with /proc/driver/nvidia/version
        r"|kernel version \d[\d.]+ does not match DSO version \d",
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
        r"|PTX JIT compilation failed|cudaErrorInvalidPtx\b|CUDA_ERROR_INVALID_PTX\b"
        r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION|Unsupported \.version \d",
    ),
    (
        "minor-version-compat-limits",
        r"API call is not supported in the installed CUDA driver|cudaErrorCallRequiresNewerDriver",
    ),
    (
        "driver-too-old",
        r"CUDA driver version is insufficient for CUDA runtime version"
        r"|NVIDIA driver on your system is too old|cudaErrorInsufficientDriver"
        r"|your nvidia driver is too old",
    ),
    (
        "no-code-for-gpu",
        r"no kernel image is available|cudaErrorNoKernelImageForDevice"
        r"|invalid device function|cudaErrorInvalidDeviceFunction|CUDA_ERROR_INVALID_IMAGE"
        r"|CUDA_ERROR_NO_BINARY_FOR_GPU|device kernel image is invalid|cudaErrorInvalidKernelImage"
        r"|is not compatible with the current PyTorch installation"
        r"|invalid value for --gpu-architecture"
        r"|ptxas fatal\s*: Value 'sm_\d+\w?' is not defined",
    ),
    (
        "cgroup-device-access-lost",
        r"Failed to init(?:ialize)? NVML: ?(?:unknown error\b(?! code)|error_unknown\b)",
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
        r"|failed to load the NVIDIA kernel module|failed to determine major: invalid device node"
        r"|(?:nvml error|initialize NVML|initialization error): ?(?:error_)?driver[ _]not[ _]loaded"
        r"|NVML_?Error_?Driver_?Not_?Loaded|modprobe: FATAL: Module nvidia not found"
        r"|NVIDIA kernel module .{0,20}not loaded",
    ),
    (
        "driver-not-usable",
        r"nvidia-container-cli: (?:initialization|detection|mount|ldcache) error: "
        r"(?:driver|driver rpc|rpc) error|driver rpc error"
        # nvidia-persistenced, where the module is loaded and no GPU answers
        r"|Failed to query NVIDIA devices\. Please ensure"
        r"|NVIDIA-SMI has failed because you do not have suff?i?c?ient permissions"
        # this program runs on the host, where no container's device rules can be the cause
        r"|nvidia-container-cli: (?:.* error: )?nvml error: ?unknown error"
        r"|initialize NVML: ?(?:GPU access blocked by the operating system|N/A)"
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
        r"|nvmlDeviceGetHandleBy\w+(?:\([^)]*\))? ?(?:failed|returned)?: ?Unknown Error"
        r"|error getting device handle for index '?\d+'?: ?Unknown Error"
        r"|Unable to determine the device handle for GPU\s*(?:\d{1,3}: ?)?"
        r"(?P<device>[\dA-F]{3,8}:[\dA-F]{2}:[\dA-F]{2})",
    ),
    (
        "gpu-needs-reboot",
        r"GPU Recovery Action\s*: *(?:Node |System )?Reboot",
    ),
    (
        "gpu-needs-reset",
        r"GPU Recovery Action\s*: *(?:GPU |Bus )?(?:Reset|Drain)|Reset Required\s*: *Yes"
        r"|GPU requires reset|(?:GPU|NVML_?ERROR)_?(?:RE?QUIRES?_?RESET|RESET_?REQUIRED)"
        r"|Drain and Reset Recommended\s*: *Yes"
        r"|^\|\s*(?P<cell>ERR!)",  # a row of nvidia-smi's table
    ),
    (
        "imex-channel-unavailable",
        r"cuMem(?:Create|ImportFromShareableHandle|ExportToShareableHandle)\b"
        r".*(?:operation not permitted|CUDA_ERROR_NOT_PERMITTED)"
        r"|(?:operation not permitted|CUDA_ERROR_NOT_PERMITTED).*\bcuMem(?:Create|Import|Export)",
    ),
    (
        "driver-libs-not-injected",
        r"libnvidia-ml\.so[.\d]*: cannot open shared object|could not load NVML library"
        r"|NVML Shared Library Not Found|NVML_?Error_?Library_?Not_?Found"
        r"|initialize NVML: ?error_library_not_found|libcuda\.so[.\d]*: cannot open shared object"
        r"|Found no NVIDIA driver on your system|exec: \"nvidia-smi\": executable file not found"
        r"|nvidia-smi: (?:command )?not found|PTX JIT compiler library not found"
        r"|Could not find cuda drivers on your machine|libcuda\.so cannot found"
        r"|NVML doesn.?t exist on this system"
        r"|The NVIDIA Driver was not detected\."
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
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE"
        r"|Invalid access of peer GPU memory over nvlink",
    ),
    (
        "gpu-busy",
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable"
        r"|CUDA_ERROR_DEVICE_UNAVAILABLE",
    ),
    (
        "no-devices",
        r"No devices were found|no CUDA-capable device is detected|cudaErrorNoDevice"
        r"|CUDA_ERROR_NO_DEVICE|No CUDA GPUs are available|No devices found\. Waiting indefinitely"
        r"|CUDA driver initialization failed, you might not have a CUDA gpu"
        r"|could not insert '?nvidia\w*'?: No such device"
        r"|None of the NVIDIA devices were (?:probed|init)",
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
        r"|CUDA_ERROR_OUT_OF_MEMORY"
        r"|(?P<handle>CU(?:BLAS|BLASLT|DNN|SOLVER|SPARSE)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED))"
        # as frameworks and engines put it; an allocator that tries again is no failure
        r"|RESOURCE_?EXHAUSTED.*: (?:Out of memory|Failed to allocate)|OOM when allocating tensor"
        r"|Resource exhausted: (?:Out of memory|Failed to allocate request)"
        r"|^(?!.*(?:NCCL (?:WARN|INFO)|not a failure))"
        r".*(?:cuda|cublas|cudnn|\bcu|\bgpu|\bdevice).{0,100}\bout of memory\b"
        r"|\bout of memory (?:error )?on (?:GPU|device|CUDA)|OutOfMemory \(no further information"
        r"|Requested amount of GPU memory .* could not be allocated"
        r"|No available memory for the cache blocks|Free memory on device .* is less than desired"
        r"|Not enough memory\. Please try to increase --mem-fraction-static",
    ),
    (
        "gpu-application-fault",
        r"an illegal memory access was encountered|an illegal instruction was encountered"
        r"|unspecified launch failure|misaligned address|device-side assert triggered"
        r"|the launch timed out and was terminated|invalid program counter|invalid address space"
        r"|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorLaunchFailure"
        r"|CUDA_ERROR_LAUNCH_FAILED",
    ),
    (
        "cuda-unknown-error",
        r"CUDA unknown error|\bError 999:|cudaErrorUnknown\b|CUDA_ERROR_UNKNOWN\b"
        r"|CUDA error: initialization error|CUDA_ERROR_NOT_INITIALIZED|cudaErrorInitializationError"
        r"|CUDA error: unknown error|failed to initialize CUDA: unknown error"
        r"|cuda driver library init failure: 999\b|cudaGetDeviceCount returned (?:30|304|999)\b"
        r"|THCudaCheck FAIL .*error=(?:30|999) : unknown error|CUDA_ERROR_OPERATING_SYSTEM\b"
        r"|OS call failed or operation not supported on this OS",
    ),
    (
        "mps-daemon-unreachable",
        r"MPS client failed to connect|MPS server is not ready|MPS server failed"
        r"|MPS client has been terminated by the server|between the MPS server and the MPS client"
        r"|cudaErrorMps\w+|CUDA_ERROR_MPS_\w+",
    ),
    (
        # a file of the driver with another version than there is now
        "cdi-spec-stale",
        r"^(?!.*nvidia-container-cli).*(?:mount|stat'?ing|stat|open)\b.*?"
        r"(?P<path>/\S*(?:/lib\S*(?:nvidia|cuda|nvcuvid|nvoptix)\S*\.so\.\d{3}\.[\d.]*\d"
        r"|/firmware/nvidia/\d{3}\.[\d.]*\d/[\w.]*\w))(?![\w/])"
        r".*no such file or directory",
    ),
    (
        "driver-not-loaded",
        r"could not (?:insert|load) '?nvidia\w*'?:",
    ),
    (
        "toolkit-setup-failed",  # what no cause above explains
        r"nvidia-container-cli: (?P<step>[a-z]+) error: (?P<reason>[^:\\]{1,120})"
        r"|failed to generate (?P<spec>CDI spec)(?:ification)?: (?:.*: )?(?P<why>[^:\"\\]{1,120})"
        r"|error executing hook [`'\"]?\S*/(?P<hook>nvidia-c[\w-]+)[`'\"]? "
        r"\((?P<exit>[^)]{1,40})\)"
        r"|invoking the NVIDIA (?P<direct>Container Runtime Hook) directly "
        r".* is (?P<not>not supported)",
    ),
    (
        "driver-libs-not-injected",
        r"(?P<dcgm>DCGM initialization error|Error: Failed to initialize NVML\s*$)",
    ),
)  # fmt: skip

# What a program prints when it knows CUDA's answer by its number alone: TensorRT, ollama, samples.
NUMBERED = re.compile(
    r"(?:CUDA initialization failure with error:?|cudaSetDevice err:"
    r"|cuda\w{3,40} returned(?: error)?(?= [3-9][0-9]| [0-9]{3})"  # fewer may be a count
    r"|cuda driver library (?:init failure:?|failed to get device context)"
    r"|cudart init failure:?|cuInit(?:\(0?\))? ?(?:err|returned|failed with error(?: code)?|=):?"
    r"|cuda runtime error \(|\bcode=|THCudaCheck FAIL .*\berror="
    r"|^\s*CUDA (?:runtime |driver )?(?:error|failure)(?: code)?[: ])"
    r" ?(?P<code>[0-9]{1,3})(?![0-9]|\.[0-9])",
    re.IGNORECASE,
)
CODES = {
    2: "gpu-out-of-memory",
    3: "cuda-unknown-error",
    8: "no-code-for-gpu",
    10: "device-ordinal-invalid",
    30: "cuda-unknown-error",
    34: "libcuda-kernel-mismatch",
    35: "driver-too-old",
    36: "minor-version-compat-limits",
    38: "no-devices",
    46: "gpu-busy",
    48: "no-code-for-gpu",
    98: "no-code-for-gpu",
    100: "no-devices",
    101: "device-ordinal-invalid",
    200: "no-code-for-gpu",
    209: "no-code-for-gpu",
    214: "gpu-uncorrectable-ecc",
    218: "ptx-newer-than-driver",
    220: "nvlink-error",
    222: "ptx-newer-than-driver",
    304: "cuda-unknown-error",
    700: "gpu-application-fault",
    702: "gpu-application-fault",
    710: "gpu-application-fault",
    715: "gpu-application-fault",
    716: "gpu-application-fault",
    719: "gpu-application-fault",
    802: "fabric-not-ready",
    803: "libcuda-kernel-mismatch",
    804: "compat-not-supported-on-gpu",
    805: "mps-daemon-unreachable",
    999: "cuda-unknown-error",
}
"""CUDA's error numbers -> finding; those below 50 that 5.0 to 10.0 gave other meanings included."""

# Printed after any failure, whatever its cause: it counts where nothing else is known.
HINTS = (
    (
        "driver-libs-not-injected",
        re.compile(
            r"did you set the docker default runtime to .?nvidia"
            r"|did you configure the NVIDIA Container Toolkit\?",
            re.IGNORECASE,
        ),
    ),
    # the banner of NVIDIA's images; the reason stands on a line of its own, if it is known
    ("driver-too-old", re.compile(r"compatibility mode is UNAVAILABLE")),
)
ALIASES = {
    "crio": "handler", "docker": "handler", "shim": "handler",
    "driver_library": "library", "node": "device", "spec": "step", "why": "reason",
    "hook": "step", "exit": "reason", "direct": "step", "not": "reason",
}  # fmt: skip
"""Groups of the patterns -> what the finding calls them."""
