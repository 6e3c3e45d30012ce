"""CUDA's and NVML's answers are found by name, number and sentence, whoever prints them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.runtime_error_carriers import cuda_answer, nvml_answer
from gpudoctor.facts.node.runtime_error_lines import recognise
from gpudoctor.facts.node.runtime_error_statuses import CUDA, NVML

NAMES = [(status.finding, name) for status in CUDA for name in status.names]
CODES = [(status.finding, code) for status in CUDA for code in status.codes]


def upper(name: str) -> str:
    """NoDevice -> NO_DEVICE."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).upper()


@pytest.mark.parametrize(("finding", "name"), NAMES)
@pytest.mark.parametrize(
    "form",
    [
        "terminate called: cudaError{0}: it failed",
        "[cuda] cudaError_t.cudaError{0}",
        "Call to cuInit results in CUDA_ERROR_{1} (9000)",
        'panicked: DriverError(CUDA_ERROR_{1}, "text")',
        "cuda_error_{1} in line 7",
        "CUDA error: text (code 9000, ERROR_{1})",
        "CudaError::{0}",
    ],
)
def test_a_name_in_any_form(finding: str, name: str, form: str) -> None:
    line = form.format(name, upper(name))
    assert cuda_answer(line) == finding
    assert recognise(line) is not None


@pytest.mark.parametrize(("finding", "code"), CODES)
@pytest.mark.parametrize(
    "form",
    [
        "CUDA error: {0}",
        "CUDA Error {0} at kernel.cu:1234",
        "Cuda failure common.cu:120 error ({0})",
        "(External) CUDA error({0}), see the docs.",
        "cuda runtime error ({0}) : text at THCGeneral.cpp:50",
        "cuCtxCreate failed with error code {0}",
        "[{0}] Call to cuLinkAddData results in X",
        "Check failed: error == cudaSuccess ({0} vs. 0)",
    ],
)
def test_a_number_beside_a_word_for_error(finding: str, code: int, form: str) -> None:
    if code >= 30 or "common.cu" not in form:
        assert cuda_answer(form.format(code)) == finding
        assert recognise(form.format(code)) is not None


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        ("no-devices", "no cuda capable device is detected"),
        ("no-devices", "NO CUDA-CAPABLE DEVICE IS DETECTED"),
        ("gpu-busy", "all CUDA-capable devices are busy or unavailable"),
        ("no-code-for-gpu", 'failed at <hash>:38 "no kernel image is available for execution"'),
        ("libcuda-kernel-mismatch",
         "system has unsupported display driver / cuda driver combination"),
        ("cuda-unknown-error", "Failed to create CUDA context (Unknown error)"),
        ("gpu-application-fault", "Illegal address in CUDA queue synchronize"),
        ("gpu-application-fault", "CUDA error: Launch failed in cuCtxSynchronize()"),
        ("ptx-newer-than-driver", "Failed to load CUDA kernel (Unsupported PTX version)"),
        ("no-code-for-gpu", "CUDA error at cuModuleLoad: No binary for GPU"),
    ],
)  # fmt: skip
def test_a_sentence_or_a_name_in_words(finding: str, text: str) -> None:
    assert cuda_answer(text) == finding
    assert recognise(text) is not None


def test_each_sentence_is_found_in_its_line() -> None:
    for status in CUDA:
        if status.alone:
            sentence = re.sub(
                r"\(\?:(\w[^|)]*)\|?[^)]*\)\??|\[(.)[^]]*\]|\?", r"\1\2", status.sentence
            )
            found = recognise(f"it failed: {sentence}")
            assert found is not None, sentence
            assert found.name == status.finding


@pytest.mark.parametrize(
    "text",
    [
        "unknown error",
        "initialization error",
        "error 100",
        "HTTP status 304 for https://example.org/cuda/error/100",
        "pulling nvidia/cuda:12.4: unexpected status code 404",
        "cuda build: make[1]: *** [ggml-cuda.dir/all] Error 2",
        "cuda job exited with code 100",
        "CUDA process exit status 35",
        "cuda graph returned 8 nodes",
        "cuda memory status: 100%",
        "cuda kernel error rate 0.35",
        "cuda_error.cc:719: registered",
        "CUDA error handling enabled",
        "rpc error: code = Unknown desc = failed to create containerd task of nvidia/cuda: unknown",
        "DriverError(CUDA_ERROR_NOT_FOUND, \"named symbol not found\")",
        "CUDA_ERROR_INVALID_DEVICE_HANDLE_OF_OTHERS",
        "node-1:7:8 [0] NCCL WARN Cuda failure 2 'out of memory'",
        "cudaGetDeviceCount returned 2",
        "Segmentation fault in CUDA line 700",
    ],
)  # fmt: skip
def test_other_numbers_and_words_are_no_answer(text: str) -> None:
    assert cuda_answer(text) is None


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (
            "driver-libs-not-injected",
            'msg="Cannot init NVML library; err: ERROR_LIBRARY_NOT_FOUND"',
        ),
        ("driver-not-loaded", "nvmlInit_v2() failed: 9"),
        ("driver-not-loaded", "NvmlError::DriverNotLoaded"),
        ("driver-library-mismatch", "nvmlInit returned 18"),
        ("driver-library-mismatch", "NVML error code: 18"),
        ("driver-not-usable", "pynvml could not be initialized Insufficient Permissions"),
        ("driver-not-usable", "failed to init nvml: ERROR_NO_PERMISSION"),
        ("cgroup-device-access-lost", "Unable to initialize NVML: Unknown Error"),
        ("cgroup-device-access-lost", "nvmlInit failed: NVML_ERROR_UNKNOWN"),
        ("gpu-needs-reset", "NVML_ERROR_RESET_REQUIRED"),
        ("gpu-lost", "nvml: temperature: ERROR_GPU_IS_LOST"),
    ],
)
def test_nvml_by_name_number_and_sentence(finding: str, text: str) -> None:
    assert nvml_answer(text) == finding


@pytest.mark.parametrize(
    "text",
    [
        "NVML: Unable to get the NvLink link utilization counter control: Insufficient Permissions",
        "nvml: set power limit: Insufficient Permissions",
        "nvml: clocks: Unknown Error",
        "Failed to initialize NVML: Not Supported",
        "nvmlInit took 12 ms",
        "nvml temperature is 18",
        "error: no permission",
        "NVML_SUCCESS",
    ],
)
def test_what_nvml_says_of_one_reading_is_no_cause(text: str) -> None:
    assert nvml_answer(text) is None


def test_each_number_stands_once() -> None:
    for table in (CUDA, NVML):
        codes = [code for status in table for code in status.codes]
        assert len(codes) == len(set(codes))


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=300))
def test_any_text_is_taken(text: str) -> None:
    cuda_answer(text)
    nvml_answer(text)
    recognise(f"CUDA error NVML {text}")
