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
    assert found == [case["expect"]["id"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("image-requirement-unsatisfied",
         "OCI runtime create failed: requirements not met: unsatisfied condition: cuda>=13.0 (x)"),
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
