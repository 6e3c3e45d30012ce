"""Errors of runtime, toolkit, device plugin, NVML and CUDA: each text names its cause."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.runtime_error_lines import recognise, recognise_all

CASES = json.loads(
    (Path(__file__).parent.parent.parent / "cases/node/runtime-errors.json").read_text()
)


@pytest.mark.parametrize("case", CASES, ids=[case["text"][:50] for case in CASES])
def test_published_cases(case: dict[str, dict[str, str]]) -> None:
    found = [error.name for _, error in recognise_all(str(case["text"]).splitlines())]
    assert set(found) - set(case["expect"].get("also", ())) == {case["expect"]["id"]}


WELL = json.loads(
    (Path(__file__).parent.parent.parent / "cases/node/runtime-healthy.json").read_text()
)


@pytest.mark.parametrize("case", WELL, ids=[case["text"][:50] for case in WELL])
def test_what_a_good_start_prints_is_no_error(case: dict[str, str]) -> None:
    assert list(recognise_all(case["text"].splitlines())) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("image-requirement-unsatisfied",
         "OCI runtime create failed: requirements not met: unsatisfied condition: cuda>=13.0 (x)"),
        ("gpu-out-of-memory", "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory"),
        ("gpu-out-of-memory", "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, "
         "n, mMemPool->getPool(), mCudaStream->get()): out of memory (/src/tllmBuffers.h:123)"),
        ("gpu-out-of-memory", "Out of memory error on GPU 0. Cannot allocate 1.125000GB memory"),
        ("gpu-out-of-memory", "OOM when allocating tensor with shape[64,3,224,224]"),
        ("mps-daemon-unreachable", "CUDA error: the remote procedural call between the MPS server "
         "and the MPS client failed"),
        ("mps-daemon-unreachable", "CUDA_ERROR_MPS_SERVER_NOT_READY"),
        ("cdi-spec-stale", "failed to fulfil mount request: open /usr/lib/firmware/nvidia/570.172"
         ".08/gsp_ga10x.bin: no such file or directory"),
        ("toolkit-setup-failed", "nvidia-container-cli: mount error: stat failed: /usr/lib/libEGL_"
         "nvidia.so.570.172.08: no such file or directory"),
        ("driver-not-loaded", "modprobe: ERROR: could not insert 'nvidia': Exec format error"),
        ("module-signature-rejected",
         "modprobe: ERROR: could not insert 'nvidia': Required key not available"),
        ("fabric-not-ready", "[[ System not yet initialized (error 802) ]]"),
        ("no-devices", "[[CUDA Driver UNAVAILABLE (cuInit(0) returned 100)]]"),
        ("no-code-for-gpu", "RuntimeError: CUDA error: invalid device function"),
        ("driver-library-mismatch",
         "kernel version 535.183.1 does not match DSO version 550.54.15 -- cannot find working"),
        ("driver-too-old", "CUDA initialization failure with error: 35 In checkCudaInstallation"),
        ("driver-too-old", "Unable to load cudart: your nvidia driver is too old or missing."),
        ("no-devices", "Cuda initialization failure with error 100. Please check cuda"),
        ("no-devices", "cudaGetDeviceCount returned 100"),
        ("no-devices", "cuInit failed with error code 100"),
        ("fabric-not-ready", "cuda driver library init failure: 802. see https://github.com"),
        ("cuda-unknown-error", "cuda driver library failed to get device context 999time=2026"),
        ("gpu-out-of-memory", "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED"),
        ("gpu-out-of-memory", "Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED"),
        ("gpu-needs-reset", "    GPU Recovery Action                   : Reset"),
        ("gpu-needs-reset", "    GPU Recovery Action                   : Drain and Reset"),
        ("gpu-needs-reset", "        Reset Required                    : Yes"),
        ("gpu-needs-reset", "failed to get device utilization: GPU requires reset"),
        ("gpu-needs-reset", "|ERR!   68C    P2             99W /  130W |  1MiB /  20475MiB |"),
        ("gpu-needs-reboot", "    GPU Recovery Action                   : Reboot"),
        ("imex-channel-unavailable",
         "Call to cuMemCreate(&memHandle, nbytes, &prop, 0 ) failed (operation not permitted)"),
        ("imex-channel-unavailable",
         "[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&handle"),
        ("cgroup-device-access-lost", "factory.go:77] Failed to initialize NVML: ERROR_UNKNOWN."),
        ("driver-not-usable", "Failed to initialize NVML: N/A"),
        ("toolkit-setup-failed",
         "error executing hook `/usr/bin/nvidia-container-runtime-hook` (exit code: 1)"),
        ("toolkit-setup-failed",
         "failed to generate CDI spec: failed to create device CDI specs: empty device edits"),
        ("driver-libs-not-injected", "Error starting nv-hostengine: DCGM initialization error"),
        ("driver-library-mismatch", "pynvml.NVMLError_LibRmVersionMismatch: RM has detected"),
        ("driver-library-mismatch",
         "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch"),
        ("driver-not-usable", "nvidia-container-cli: nvml error: unknown error"),
        ("host-driver-libs-missing",
         "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: "
         "cannot open shared object file: no such file or directory: unknown"),
        ("driver-not-loaded",
         "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"),
        ("driver-not-loaded", "Failed to initialize NVML: Driver Not Loaded"),
        ("driver-not-loaded", "Failed to initialize NVML: ERROR_DRIVER_NOT_LOADED"),
        ("driver-not-loaded",
         "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-31-generic"),
        ("driver-not-usable",
         "nvidia-container-cli: initialization error: driver error: failed to process request"),
        ("driver-not-usable", "nvidia-container-cli: initialization error: driver rpc error: x"),
        ("driver-not-usable", "Failed to initialize NVML: Insufficient Permissions"),
        ("driver-libs-not-injected",
         "E1129 main.go:123] Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND"),
        ("driver-libs-not-injected",
         "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
        ("driver-libs-not-injected",
         "RuntimeError: Found no NVIDIA driver on your system. Please check that you have"),
        ("driver-libs-not-injected", "NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
        ("driver-libs-not-injected",
         'exec: "nvidia-smi": executable file not found in $PATH: unknown'),
        ("runtime-handler-missing",
         "failed to find runtime handler nvidia from runtime list map[crun:0xc000]"),
        ("runtime-handler-missing", "docker: Error: unknown or invalid runtime name: nvidia."),
        ("cdi-device-not-in-spec",
         "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0, x"),
        ("toolkit-not-installed",
         'exec: "nvidia-container-runtime-hook": executable file not found in $PATH'),
        ("fabric-not-ready", "CUDA error 802: system not yet initialized"),
        ("fabric-manager-version-mismatch",
         "fabric manager NVIDIA GPU driver interface version 570.133.20 don't match with driver "
         "version 570.124.06. Please update with matching NVIDIA driver package."),
        ("libcuda-kernel-mismatch", "cudaErrorSystemDriverMismatch"),
        ("libcuda-kernel-mismatch", "CUDA driver is a stub library"),
        ("ptx-newer-than-driver", "the provided PTX was compiled with an unsupported toolchain."),
        ("minor-version-compat-limits", "API call is not supported in the installed CUDA driver"),
        ("driver-too-old",
         "The NVIDIA driver on your system is too old (found version 12020). Please update"),
        ("driver-too-old",
         "CUDA error 35: CUDA driver version is insufficient for CUDA runtime version"),
        ("no-code-for-gpu",
         "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
         "PyTorch installation."),
        ("no-code-for-gpu", "CUDA error: device kernel image is invalid"),
        ("inotify-limit", "failed to create fsnotify watcher: too many open files"),
        ("gpu-lost",
         "Unable to determine the device handle for GPU0000:18:00.0: Unknown Error"),
        ("gpu-lost", "NVMLError_GpuIsLost: GPU is lost"),
        ("no-devices", "No devices were found"),
        ("no-devices", "CUDA error: no CUDA-capable device is detected"),
        ("no-devices", "RuntimeError: No CUDA GPUs are available"),
        ("no-devices", "No devices found. Waiting indefinitely."),
        ("device-list-stale", "nvidia-container-cli: device error: GPU-1: unknown device: unknown"),
        ("device-list-stale", "nvidia-container-cli: device error: unknown device id: 1: unknown"),
        ("device-list-stale",
         r"nvidia-container-cli: device error: unknown device id: GPU-1\\\\n\\\\\""),
        ("toolkit-setup-failed", "nvidia-container-cli: device error: false: unknown device"),
        ("toolkit-setup-failed",
         "nvidia-container-cli: device error: /var/run/nvidia-container-devices: unknown device"),
        ("no-devices",
         "nvidia-container-cli: device error: no-gpu-has-2MiB-to-run: unknown device"),
        ("module-signature-rejected",
         "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
        ("nouveau-bound", "ERROR: The Nouveau kernel driver is currently in use by your system."),
        ("cuda-unknown-error", "CUDA unknown error - this may be due to an incorrectly set up"),
        ("gpu-out-of-memory",
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        ("gpu-busy", "CUDA error: all CUDA-capable device(s) is/are busy or unavailable"),
        ("device-ordinal-invalid", "RuntimeError: CUDA error: invalid device ordinal"),
        ("gpu-application-fault", "CUDA error: an illegal memory access was encountered"),
        ("gpu-uncorrectable-ecc", "CUDA error: uncorrectable ECC error encountered"),
        ("nvlink-error", "CUDA error: uncorrectable NVLink error detected during the execution"),
        ("compat-not-supported-on-gpu", "cudaErrorCompatNotSupportedOnDevice"),
    ],
)  # fmt: skip
def test_further_wordings(name: str, text: str) -> None:
    found = recognise(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please "
         "update your driver", {"wanted": "cuda>=12.8"}),
        ("requirements not met: unsatisfied condition: brand=tesla (brand=nvidia)",
         {"wanted": "brand=tesla"}),
        ('no runtime for "nvidia-legacy" is configured', {"handler": "nvidia-legacy"}),
        ("failed to find runtime handler nvidia from runtime list", {"handler": "nvidia"}),
        ("unresolvable CDI devices management.nvidia.com/gpu=GPU-0",
         {"device": "management.nvidia.com/gpu=GPU-0"}),
        ("Unable to determine the device handle for GPU 0000:18:00.0: GPU is lost.  Reboot",
         {"device": "0000:18:00"}),
        ("Unable to determine the device handle for GPU3: 0000:BA:00.0: Unknown Error",
         {"device": "0000:BA:00"}),
        ('setting up CDI devices: failed to stat CDI host device "/dev/dri/renderD129": no such',
         {"device": "/dev/dri/renderD129"}),
        ('desc = RuntimeHandler "nvidia" not supported', {"handler": "nvidia"}),
        ("nvidia-container-cli: ldcache error: process /sbin/ldconfig terminated with signal 9",
         {"step": "ldcache", "reason": "process /sbin/ldconfig terminated with signal 9"}),
        ("nvidia-container-cli: mount error: failed to add device rules: load program: denied",
         {"step": "mount", "reason": "failed to add device rules"}),
        ("failed to locate libcuda.so.535.183.06: pattern libcuda.so.535.183.06 not found",
         {"library": "libcuda.so.535.183.06"}),
    ],
)  # fmt: skip
def test_what_the_line_says_inside(text: str, values: dict[str, str]) -> None:
    found = recognise(text)
    assert found is not None
    assert found.values == values


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Failed to initialize NVML: Not Supported",
        "too many open files",
        "error 802.11 association",
        "Step 803: loss 1.2",
        "INFO no devices were requested",
        "container runtime containerd is configured",
        "could not insert 'zfs': Required key not available",
        "NCCL WARN Cuda failure 'out of memory'",
        "nvidia-container-cli: no error",
        "starting FS watcher for /var/lib/kubelet/device-plugins/",
        "if this is not a GPU node, did you configure the toleration?",
        'stat CDI host device "/dev/dri/renderD129"',
        "fabric manager version 550.120 matches the driver",
    ],
)
def test_other_lines_name_nothing(text: str) -> None:
    assert recognise(text) is None


def test_each_cause_is_told_once_with_its_first_line() -> None:
    lines = ["x", "Error 803: a", "Error 803: b", "GPU is lost"]
    assert [(number, error.name) for number, error in recognise_all(lines)] == [
        (2, "libcuda-kernel-mismatch"),
        (4, "gpu-lost"),
    ]


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    recognise(text)
    list(recognise_all(text.splitlines()))


@pytest.mark.parametrize(
    "line",
    [
        "    GPU Recovery Action                   : None",
        "        Reset Required                    : No",
        "| N/A   33C    P0             70W /  700W |       1MiB /  81559MiB |      0%  Default |",
        "CUDA error 7.5 is not a version",
        "cudaGetDeviceCount returned 8 devices",
        "cuda driver library init failure: 1",
        "I0822 main.go:238] Starting FS watcher for /var/lib/kubelet/device-plugins",
        "WARN[0000] Could not locate libnvidia-vulkan-producer.so.580.95.05: pattern not found",
        "Generated CDI spec with version 0.8.0",
        "cuMemCreate is used for buffers",
        "Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.37GiB. not a failure",
        "NCCL WARN Cuda failure 2 'out of memory'",
        "Out of memory: Killed process 7 (device-plugin) total-vm:1kB",
        "NOTE: CUDA Forward Compatibility mode ENABLED.",
        "open /usr/lib/x86_64-linux-gnu/libfoo.so.1: no such file or directory",
        "stat /models/llama.so.570.1/weights.bin: no such file or directory of the model",
        "modprobe: could not insert 'nvme_fabrics': Operation not permitted",
    ],
)
def test_what_is_no_error(line: str) -> None:
    assert list(recognise_all([line])) == []


def test_the_plugins_hint_counts_where_nothing_else_is_known() -> None:
    hint = "If this is a GPU node, did you set the docker default runtime to `nvidia`?"
    error = "Failed to initialize NVML: ERROR_DRIVER_NOT_LOADED."
    names = [[found.name for _, found in recognise_all(lines)] for lines in
             ([hint], [error, hint], [hint, error])]  # fmt: skip
    assert names == [["driver-libs-not-injected"], ["driver-not-loaded"], ["driver-not-loaded"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("driver-libs-not-injected", "FileNotFoundError: [Errno 2] No such file or directory: "
         "'nvidia-smi'"),
        ("driver-libs-not-injected", "fork/exec: /usr/bin/nvidia-smi: no such file or directory"),
        ("driver-libs-not-injected", "which: no nvidia-smi in (/usr/bin:/bin)"),
        ("driver-libs-not-injected", "dlopen failed: unable to load libcuda.so.1"),
        ("driver-libs-not-injected", "NVIDIA driver is not installed"),
        ("driver-libs-not-injected", "no NVIDIA driver was found"),
        ("toolkit-not-installed", "nvidia-ctk: command not found"),
        ("toolkit-not-installed", 'exec: "nvidia-container-cli": executable file not found'),
        ("host-driver-libs-missing", "nvidia-ctk: could not find libnvidia-ml.so.1 in driver root"),
        ("cdi-device-not-in-spec", 'device "nvidia.com/gpu=GPU-1" does not exist'),
        ("runtime-handler-missing", 'unknown runtime handler "nvidia"'),
        ("runtime-handler-missing", 'runtime "nvidia-cdi" is not configured'),
        ("driver-too-old", "This build requires NVIDIA driver 550 or newer, but 535.183.01 found"),
        ("driver-too-old", "your CUDA driver is older than the runtime"),
        ("driver-too-old", "insufficient CUDA driver: 11040"),
        ("no-code-for-gpu", "sm_120 is not supported by this build"),
        ("no-code-for-gpu", "CUDA capability 3.5 is no longer supported"),
        ("no-code-for-gpu", "nvcc fatal : Unsupported gpu architecture 'compute_120'"),
        ("no-code-for-gpu", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
        ("driver-not-loaded", "kernel module nvidia is not loaded"),
        ("driver-not-loaded", "open /dev/nvidiactl: no such file or directory"),
        ("cgroup-device-access-lost", "open /dev/nvidia0: operation not permitted"),
        ("inotify-limit", "ENOSPC: System limit for number of file watchers reached"),
        ("inotify-limit", "Failed to allocate directory watch: Too many open files"),
        ("module-signature-rejected", "Lockdown: modprobe: unsigned module loading is restricted"),
        ("nouveau-bound", "        Kernel driver in use: nouveau"),
        ("no-devices", "AssertionError: CUDA unavailable, invalid device 0 requested"),
        ("no-devices", "ERROR: found 0 CUDA devices"),
        ("no-devices", "RuntimeError: No GPU found. A GPU is needed for quantization."),
        ("no-devices", "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No "
         "visible GPU devices. (or set JAX_PLATFORMS=cpu to skip this backend.)"),
        ("driver-too-old", "the NVIDIA driver 470.57 is older than required (525.60.13)"),
        ("no-code-for-gpu", "[E] [TRT] 6: The engine plan file is generated on an incompatible "
         "device, expecting compute 8.9 got compute 9.0, please rebuild."),
        ("toolkit-setup-failed", "error running hook #1: error running hook: exit status 1, stdout:"
         " , stderr: level=error msg=\"failed to create link [libGLX_nvidia.so.535.183.01 /usr/lib/"
         "libGLX_indirect.so.0]: unexpected link target: libGLX_mesa.so.0\": unknown"),
        ("driver-libs-not-injected",
         "| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: N/A      |"),
        ("no-code-for-gpu", "Minimum and Maximum cuda capability supported by this version of "
         "PyTorch is (7.0) - (12.0)"),
        ("no-devices", "Cannot run short-ranged nonbonded interactions on a GPU because no GPU is"),
        ("no-devices", "ERROR: Could not find/initialize a specified accelerator device"),
        ("gpu-needs-reset",
         "Unable to determine the device handle for GPU0: 0000:3B:00.0: GPU requires reset"),
        ("gpu-lost", "Unable to determine the device handle for GPU0: 0000:3B:00.0: Unknown Error"),
        ("p2p-disabled", "CUDA error: peer access is not supported between these two devices"),
        ("p2p-disabled", "src/host/topo/topo.cpp:469: [GPU 1] Peer GPU 0 is not accessible, exit"),
        ("peermem-missing", "ibgda.cpp:nvshmemt_init:3626: neither nv_peer_mem, or nvidia_peermem "
         "detected. Skipping transport."),
        ("device-ordinal-invalid", " But your machine only has: [0, 1]"),
        ("device-ordinal-invalid", "ValueError: invalid CUDA device id"),
        ("gpu-out-of-memory", "unable to allocate CUDA0 buffer of size 4294967296"),
        ("mps-daemon-unreachable", "Cannot find MPS control daemon process"),
    ],
)  # fmt: skip
def test_the_same_meaning_in_other_words(name: str, text: str) -> None:
    found = recognise(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "text",
    [
        "Detected NVML platform: found NVML library",
        "Successfully opened dynamic library libcuda.so.1",
        "found nvidia-smi at /usr/bin/nvidia-smi",
        "nvidia-smi exited with code 0",
        "Could not load dynamic library 'libcudart.so.11.0'; dlerror: cannot open shared object",
        "ImportError: libcudnn.so.8: cannot open shared object file: No such file or directory",
        "NVIDIA driver version 550.54.15 found, cuDNN 9.1 found",
        "using nvidia-container-runtime from /usr/bin",
        "injected nvidia.com/gpu=0 from /etc/cdi/nvidia.yaml",
        "runtime nvidia configured in /etc/containerd/config.toml",
        "requires NVIDIA driver 550 or newer",
        "The NVIDIA driver's CUDA version is 12.2 which is older than the PTX compiler version 12.6"
        " .77. XLA is disabling parallel compilation, which may slow down compilation.",
        "NVIDIA driver 525.60.13 is older than the recommended version 535.54.03",
        "no visible GPU memory leak",
        "level=info msg=\"Skipping library candidate '/usr/lib64/libnvidia-ml.so': error resolving "
        "link '/usr/lib64/libnvidia-ml.so': no such file or directory\"",
        'level=INFO msg="No GPU MIG devices found"',
        "no GPUDirect RDMA capable NIC available for cuda:0, using host staging",
        "error running hook #0: exit status 1, stdout: , stderr: failed to open /etc/hostname",
        "The engine plan file is not compatible with this version of TensorRT",
        "your machine only has 64 GB of memory",
        "[TensorRT-LLM][WARNING] Device 2 peer access Device 5 is not available.",
        "nvidia_peermem: module loaded",
        "| NVIDIA-SMI 570.133.20   Driver Version: 570.133.20   CUDA Version: 12.8     |",
        "driver 580.95.05 is newer than the runtime",
        "Building CUDA kernels for sm_80;sm_90",
        "compute capability 9.0, VMM: yes",
        "Compute capability < 7.5 detected! Only slow 8-bit matmul is supported for your GPU!",
        "CUDA kernels will be jit-compiled from PTX for compute capability 12.0",
        "kernel module nvidia_peermem loaded",
        "/dev/nvidiactl: crw-rw-rw- root root 195, 255",
        "watcher: 3 files changed",
        "too many open files in table users",
        "module verification failed: signature and/or required key missing - tainting kernel",
        "Kernel driver in use: nvidia",
        "WARNING: No GPU/TPU found, falling back to CPU.",
        "CUDA is not available, using CPU",
        "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. No preemption victims found",
        "no GPU memory was allocated before, 80 GiB available",
        "No CUDA toolkit found. gsplat will be disabled.",
        "GPU operator not found in namespace gpu-operator",
        "valid CUDA device id 0",
        "failed to allocate pinned host memory, using pageable for CUDA0 buffer",
        "MPS control daemon started",
        'could not select device driver "amd" with capabilities: []',
        'selected device driver "cdi" with capabilities: []',
        "The git hook couldn't be found",
        "pod d65f09ad unable to find GPU device allocation by scheduler, which is unexpected",
        "no GPU requests found in the pod",
        "could not find GPU quota for the namespace",
        "NVIDIA LXC hook found at /usr/share/lxc/hooks/nvidia",
        "INFO: found 34 nv files on this host",
        "GPU driver verification succeeded",
        "nvidia-fabricmanager.service: Succeeded",
    ],
)
def test_words_that_are_near_and_mean_no_error(text: str) -> None:
    assert list(recognise_all([text])) == []


def test_a_manager_with_no_switch_to_manage_is_no_hint() -> None:
    failed = "nvidia-fabricmanager.service: Control process exited, status=1/FAILURE"
    nothing = "request to query NVSwitch device failed: Nothing to do [NV_WARN_NOTHING_TO_DO]"
    assert [found.name for _, found in recognise_all([failed])] == ["fabric-not-ready"]
    assert list(recognise_all([nothing, failed])) == []
    assert list(recognise_all([failed, nothing])) == []
