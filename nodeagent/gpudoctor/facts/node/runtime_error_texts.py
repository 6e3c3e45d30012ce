"""What runtimes, toolkit, device plugin and programs print in their own words: the patterns.

CUDA's and NVML's own answers are the tables of `runtime_error_statuses.py`. What stands here is
said about them, or before them: a library or program that is not there, a container engine that
refuses, a kernel that rejects the module, a GPU that no code fits. A pattern names what is meant
(which thing, and that it is not found, too old, refused), not one program's sentence.
"""

from __future__ import annotations

import re

from gpudoctor.facts.node.runtime_error_words import (
    ABSENT,
    CANNOT_GET,
    DRIVER_LIBRARY,
    FAILED_TO,
    NO_DRIVER,
    NO_GPU,
    NO_TOOL,
    no_program,
)

_ARCHITECTURE = (
    r"(?:\bsm_?\d{2,3}[af]?\b|\bcompute_\d{2,3}\b"
    r"|\b(?:compute|CUDA)[ -](?:cap|capability|arch|architecture)\b)"
)

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
    ("ptx-newer-than-driver", r"Unsupported \.version \d|PTX \.version \S+ (?:is )?not supported"),
    (
        "driver-too-old",
        r"NVIDIA driver on your system is too old"
        # older than a compiler is no hindrance, nor is older than what somebody recommends
        r"|\b(?:nvidia|cuda|gpu|display)\b.{0,40}\bdriver\b.{0,40}\b(?:too old|out ?dated"
        r"|out.of.date|(?:older|lower|less) than(?! (?:the )?(?:recommended|ptx|.{0,20}compiler)))"
        r"|your (?:nvidia )?driver is too old|\binsufficient (?:CUDA |NVIDIA )?driver"
        r"|\brequires? .{0,40}\bdriver\b.{0,40}(?:>=|or (?:newer|later|higher|above)|at least)"
        r".{0,60}\b(?:found|but|have|current\w*|detected|installed|got)\b"
        r"|\bdriver\b.{0,60}(?:does not|doesn.t) support CUDA"
        r"|driver (?:version )?does ?(?:n.t| not) support the required (?:nvenc|nvdec|cuda) API",
    ),
    (
        "no-code-for-gpu",
        r"is not compatible with the current PyTorch installation"
        r"|PyTorch no longer supports this GPU"
        # said only of a GPU that lies outside of them
        r"|M(?:in|ax)imum(?: and Maximum)? cuda capability supported by this (?:version|library)"
        r"|invalid value for --gpu-architecture|Unsupported gpu architecture"
        r"|Value 'sm_\d+\w?' is not defined"
        rf"|{_ARCHITECTURE}.{{0,60}}?\b(?:not|isn.t|no longer|un)(?: yet)? ?"
        r"(?:supported|compatible|available)"
        rf"|{_ARCHITECTURE}.{{0,40}}\btoo (?:low|old)\b"
        r"|unsupported (?:GPU |CUDA )?(?:compute capability|architecture)"
        r"|no (?:device|GPU|kernel) code (?:compatible|available|for)"
        # TensorRT builds an engine for one architecture
        r"|generated on an incompatible device|expecting compute \d+\.\d+ got compute \d"
        r"|CU(?:BLAS|DNN|SPARSE|SOLVER)_STATUS_ARCH_MISMATCH"
        r"|\bonly supports? (?:Turing|Ampere|Ada|Hopper|Blackwell)\w* (?:GPUs )?or newer",
    ),
    (
        "cgroup-device-access-lost",
        r"/dev/nvidia(?:ctl|\d+)\b.*operation not permitted"
        r"|operation not permitted.{0,20}/dev/nvidia(?:ctl|\d+)\b",
    ),
    (
        "host-driver-libs-missing",
        r"nvidia-container-cli(?:\.real)?: initialization error: "
        r"load library failed: (?P<library>lib[\w.-]+)"
        r"|load library failed: libnvidia-ml\.so"
        # of the host, or below the driver root that the toolkit was given
        r"|nvidia-container-cli(?:\.real)?: initialization error: "
        r"(?:cannot open shared object|change root failed: no such file)"
        r"|failed to locate (?P<driver_library>libcuda\.so[\w.]*): .*not found"
        r"|library libcuda\.so\.\d{3}\.[\d.]+: not found"
        rf"|(?:nvidia-ctk|CDI spec|driver root)\b.*(?:{CANNOT_GET}.{{0,40}}{DRIVER_LIBRARY}"
        rf"|{DRIVER_LIBRARY}.{{0,60}}{ABSENT})",
    ),
    (
        "driver-not-loaded",
        r"communicate with the NVIDIA driver"
        r"|failed to load the NVIDIA kernel module|failed to determine major: invalid device node"
        r"|(?:nvml|nvidia|cuda|initialization error|gpu)\b.{0,80}"
        r"\bdriver[ _]?(?:is )?not[ _]?loaded"
        r"|NVML_?Error_?Driver_?Not_?Loaded|(?:error_|\bErr)driver_?not_?loaded"
        r"|modprobe: FATAL: Module nvidia not found"
        r"|nvidia(?:[-_]\w+|\.ko)?'? (?:kernel )?(?:module|driver)s? .{0,20}"
        r"not (?:loaded|running|built)"
        r"|kernel module '?nvidia(?:\.ko)?'? (?:is )?not (?:found|loaded)"
        r"|/dev/nvidiactl\b.{0,20}no such file|/proc/driver/nvidia/version\b.{0,20}no such file",
    ),
    (
        "driver-not-usable",
        r"nvidia-container-cli(?:\.real)?: (?:initialization|detection|mount|ldcache) error: "
        r"(?:driver|driver rpc|rpc) error|driver rpc error"
        # nvidia-persistenced, where the module is loaded and no GPU answers
        r"|Failed to query NVIDIA devices\. Please ensure"
        r"|NVIDIA-SMI has failed because you do not have suff?i?c?ient permissions"
        # this program runs on the host, where no container's device rules can be the cause
        r"|nvidia-container-cli(?:\.real)?: (?:.* error: )?nvml error: ?unknown error"
        r"|initialize NVML: ?N/A"
        r"|\bnvml(?: error)?: ?insufficient permissions"
        r"|nvidia-container-cli(?:\.real)?: .*timed out",
    ),
    (
        "runtime-handler-missing",
        r"no runtime for \"(?P<handler>[^\"]+)\" is configured"
        r"|failed to find runtime handler (?P<crio>\S+) from runtime list"
        r"|RuntimeHandler \"(?P<shim>[^\"]+)\" not supported"
        r"|unknown(?: or invalid)? runtime(?: name:| specified) ?\"?(?P<docker>[\w.-]+)"
        r"|(?:unknown|invalid|unsupported|no such) (?:OCI )?runtime(?: handler)?\W{1,4}"
        r"(?P<cri>nvidia[\w-]*)"
        r"|runtime(?: handler)?[:\s]+\\?[\"'`]?(?P<oci>nvidia[\w-]*)\\?[\"'`]?:? "
        r"(?:is |was )?(?:not (?:found|supported|configured|known)|unknown|invalid)",
    ),
    (
        "cdi-device-not-in-spec",
        r"unresolvable CDI devices? (?P<device>[^\s,\"]+)|failed to inject CDI devices"
        r"|CDI device injection failed|unresolvable CDI device"
        # the spec names a device node that has gone since it was written
        r"|failed to stat CDI host device \"(?P<node>[^\"]+)\""
        # an engine without CDI: says so, or takes the device's name for a file
        r"|could not select device driver \"cdi\" with capabilities"
        rf"|(?P<named>(?<![\w.-])(?:[\w-]+\.)?nvidia\.com/\w+=[\w:.-]+)[\"'`]?\W.{{0,40}}?"
        rf"(?:{ABSENT}|unknown|unresolvable|not registered)"
        rf"|(?:unknown|no such|unregistered|{CANNOT_GET}|{FAILED_TO} resolve)\W.{{0,40}}?"
        r"(?P<asked>(?<![\w.-])(?:[\w-]+\.)?nvidia\.com/\w+=[\w:.-]+)",
    ),
    (
        "toolkit-not-installed",
        rf"{NO_TOOL}|\bNVIDIA (?:[\w-]+ )?hook (?:is )?{ABSENT}"
        r"|failed to discover GPU vendor from CDI: no known GPU vendor"
        r"|could not select device driver \"[^\"]*\" with capabilities: \[\[[^\]]*gpu",
    ),
    (
        "inotify-limit",
        r"(?:inotify|fsnotify|watch(?:er|ing|es)?\b).{0,100}?"
        r"(?:too many open files|no space left on device|EMFILE|ENOSPC)"
        r"|inotify_(?:init1?|add_watch)\b.*(?:too many open files|no space left|EMFILE|ENOSPC)"
        r"|(?:EMFILE|ENOSPC).{0,60}(?:inotify|watchers)"
        r"|inotify (?:instances?|watches) limit|limit (?:of|on|for) inotify"
        r"|inotify (?:resources|instances|watches) (?:are )?(?:exhausted|used up)",
    ),
    (
        "gpu-lost",
        r"\bGPU is lost\b|GPU_IS_LOST|GpuIsLost|fallen off the bus"
        r"|nvmlDeviceGetHandleBy\w+(?:\([^)]*\))? ?(?:failed|returned)?: ?Unknown Error"
        r"|error getting device handle for index '?\d+'?: ?Unknown Error"
        r"|Unable to determine the device handle for GPU\s*(?:\d{1,3}: ?)?"
        # what stands behind the address may tell better
        r"(?P<device>[\dA-F]{3,8}:[\dA-F]{2}:[\dA-F]{2})(?!.*(?:requires reset|permission))",
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
        # a row of nvidia-smi's table, of its -q, of a query
        r"|^\|\s*(?P<cell>ERR!)|^ {4,}[A-Z][\w .]* : (?P<entry>Unknown Error)\s*$"
        r"|^[^,]+,.*\[(?P<field>Unknown Error)\]",
    ),
    (
        "imex-channel-unavailable",
        r"cuMem(?:Create|ImportFromShareableHandle|ExportToShareableHandle)\b"
        r".*(?:operation not permitted|CUDA_ERROR_NOT_PERMITTED)"
        r"|(?:operation not permitted|CUDA_ERROR_NOT_PERMITTED).*\bcuMem(?:Create|Import|Export)",
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
        "driver-libs-not-injected",
        # who goes through candidates finds all but one of them absent
        rf"^(?!.*(?:nvidia-container-cli|nvidia-ctk|\bcandidate\b)).*?"
        rf"(?:{CANNOT_GET}.{{0,40}}?{DRIVER_LIBRARY}"
        rf"|{DRIVER_LIBRARY}.{{0,60}}?(?:{ABSENT}|{CANNOT_GET}))"
        rf"|{NO_DRIVER}"
        r"|(?:initiali[sz]e|init|load) NVML: ?could not load|could not load NVML"
        r"|NVML doesn.?t exist on this system|libcuda\.so cannot found"
        r"|The NVIDIA Driver was not detected\."
        rf"|{no_program('nvidia-smi')}|'nvidia-smi' is not a typo"
        # nvidia-smi found NVML's library and no libcuda beside it
        r"|NVIDIA-SMI .*\bCUDA (?:UMD )?Version: ?(?P<level_cell>N/A|ERR!|Not Found)",
    ),
    (
        "module-signature-rejected",
        r"Key was rejected by service|could not insert '?nvidia[\w-]*'?: Required key not available"
        r"|Loading of (?:unsigned module|module with \w+ key) is rejected"
        r"|not signed by a (?:trusted key|key that)"
        r"|kernel module load error: (?:operation not permitted|required key)"
        r"|Lockdown: .*unsigned module loading is restricted",
    ),
    (
        "nouveau-bound",
        r"nouveau (?:kernel )?(?:driver|module) is (?:currently )?(?:in use|loaded)"
        r"|kernel driver in use: nouveau",
    ),
    (
        "no-devices",
        r"No devices were found|No CUDA GPUs are available|No devices found\. Waiting indefinitely"
        r"|CUDA driver initialization failed, you might not have a CUDA gpu"
        r"|could not insert '?nvidia\w*'?: No such device"
        r"|None of the NVIDIA devices were (?:probed|init)"
        # the sharing plugin's word for: no GPU has room
        r"|nvidia-container-cli(?:\.real)?: device error: .*(?P<room>no-gpu-has-\d+\w*-to-run)"
        rf"|{NO_GPU}",
    ),
    (
        "device-list-stale",
        # a word or a path in the device's place is a setting that was misread, and no device
        r"nvidia-container-cli(?:\.real)?: device error: (?:unknown device id: )?"
        r"(?P<device>(?:(?:MIG-)?GPU-|MIG-|\d)[\w:/.-]*)(?<!:)(?=[\s\\\"']|: unknown|$)",
    ),
    (
        "device-ordinal-invalid",
        r"(?:cuda|gpu).{0,60}\b(?:invalid|illegal|bad|no such) (?:CUDA |GPU )?device"
        r"(?:[ _](?:id|index|number|ordinal))?[ :#=]*'?\d"
        r"|(?:invalid|illegal|bad) (?:CUDA|GPU) (?:device )?(?:id|index|number|ordinal)\b"
        r"|(?:cuda|gpu) (?:device )?(?:id|index|ordinal|number)? ?\d* ?(?:is )?out of range"
        r"|your (?:machine|node|system) only has:? \[[\d, ]*\]",
    ),
    (
        "gpu-out-of-memory",
        r"CUDA out of memory"
        r"|(?P<handle>CU(?:BLAS|BLASLT|DNN|SOLVER|SPARSE)_STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)"
        r"|CUFFT_ALLOC_FAILED)"
        # as frameworks and engines put it; an allocator that tries again is no failure
        r"|RESOURCE_?EXHAUSTED.*: (?:Out of memory|Failed to allocate)|OOM when allocating tensor"
        r"|Resource exhausted: (?:Out of memory|Failed to allocate request)"
        r"|^(?!.*(?:NCCL (?:WARN|INFO)|not a failure))"
        r".*(?:cuda|cublas|cudnn|\bcu|\bgpu|\bdevice).{0,100}\bout of memory\b"
        r"|\bout of memory (?:error )?(?:on|in) (?:GPU|device|CUDA)"
        r"|OutOfMemory \(no further information"
        r"|Requested amount of GPU memory .* could not be allocated"
        r"|No available memory for the cache blocks|Free memory on device .* is less than desired"
        r"|Not enough memory\. Please try to increase --mem-fraction-static"
        r"|\b(?:insufficient|not enough) (?:free )?(?:(?:GPU|CUDA|device)\w* memory|VRAM)"
        r"|^(?!.*(?:pinned|host|NCCL (?:WARN|INFO)|not a failure))"
        r".*(?:failed|unable) to allocate\b.{0,60}"
        r"\b(?:CUDA\d* buffer|on (?:the )?GPU|GPU memory|VRAM)",
    ),
    ("nvlink-error", r"Invalid access of peer GPU memory over nvlink"),
    # NVSHMEM: it has no other way between GPUs of one host, and none to the adapters by itself
    ("p2p-disabled", r"\bPeer GPU \d+ is not accessible\b"),
    (
        "peermem-missing",
        r"neither nv_peer_mem,? n?or nvidia_peermem\b"
        r"|\bnvidia[_-]peermem\b.{0,30}\b(?:not (?:loaded|found|detected|installed)|missing)",
    ),
    ("cuda-unknown-error", r"CUDA unknown error"),
    (
        "mps-daemon-unreachable",
        rf"(?:{CANNOT_GET}|failed to (?:connect to|reach)).{{0,20}}\bMPS (?:control )?"
        r"(?:daemon|server)"
        r"|\bMPS (?:control )?(?:daemon|server).{0,30}"
        r"\b(?:not running|unreachable|not found|refused)",
    ),
)  # fmt: skip

# What neither a cause above nor an answer of CUDA or NVML explains.
GENERAL: tuple[tuple[str, str], ...] = (
    (
        "driver-not-loaded",
        r"could not (?:insert|load) '?nvidia\w*'?:",
    ),
    (
        "toolkit-setup-failed",
        r"nvidia-container-cli(?:\.real)?: (?P<step>[a-z]+) error: (?P<reason>[^:\\]{1,120})"
        r"|failed to generate (?P<spec>CDI spec)(?:ification)?: (?:.*: )?(?P<why>[^:\"\\]{1,120})"
        r"|error executing hook [`'\"]?\S*/(?P<hook>nvidia-c[\w-]+)[`'\"]? "
        r"\((?P<exit>[^)]{1,40})\)"
        r"|ERROR:? \S*nvidia-container-runtime: (?P<trouble>[^:\\]{1,120})"
        rf"|error running (?:\w+ )?(?P<oci_step>hook)\b.*?(?P<oci_reason>{FAILED_TO}"
        r"[^\"\\]{0,40}(?:nvidia|libcuda)[^\"\\]{0,120})"
        r"|invoking the NVIDIA (?P<direct>Container Runtime Hook) directly "
        r".* is (?P<not>not supported)",
    ),
    (
        "driver-libs-not-injected",
        r"(?P<dcgm>DCGM initialization error|Error: Failed to initialize NVML\s*$)",
    ),
)  # fmt: skip

# Printed after any failure, whatever its cause: it counts where nothing else is known.
HINTS = (
    (
        "driver-libs-not-injected",
        re.compile(
            r"did you set the docker default runtime to .?nvidia"
            r"|did you configure the NVIDIA Container Toolkit\?"
            # Apptainer's word for: no driver here; the check in the entry point of NGC's images
            r"|Could not find any nv files on this host"
            r"|GPU driver verification failed|check that GPU passthrough is enabled",
            re.IGNORECASE,
        ),
    ),
    # the banner of NVIDIA's images; the reason stands on a line of its own, if it is known
    (
        "driver-too-old",
        re.compile(
            r"compatibility mode is UNAVAILABLE|minimum required NVIDIA driver",
            re.IGNORECASE,
        ),
    ),
    ("driver-not-loaded", re.compile(r"kernel driver does not appear to be running")),
    (
        "fabric-not-ready",
        re.compile(
            r"(?:fabric ?manager.{0,80}\b(?:failed|not running|inactive|FAILURE)"
            r"|failed to start.{0,40}fabric ?manager)",
            re.IGNORECASE,
        ),
    ),
    ("cuda-unknown-error", re.compile(r"CUDA failed to initialize|failed to initialize CUDA")),
)
# A machine without switches has no fabric to manage: what its manager says is no hint.
NO_HINT = "NV_WARN_NOTHING_TO_DO"
ALIASES = {
    "crio": "handler", "docker": "handler", "shim": "handler", "oci": "handler",
    "cri": "handler", "entry": "cell", "field": "cell",
    "driver_library": "library", "node": "device", "named": "device", "asked": "device",
    "spec": "step", "why": "reason", "oci_step": "step", "oci_reason": "reason",
    "hook": "step", "exit": "reason", "trouble": "reason", "direct": "step", "not": "reason",
}  # fmt: skip
"""Groups of the patterns -> what the finding calls them."""

NAMES = tuple(dict.fromkeys(name for name, _ in (*ERRORS, *GENERAL)))
