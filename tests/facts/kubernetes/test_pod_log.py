"""Telling lines of pod logs: one true line and one look-alike of each kind, and any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import pod_log

MODEST = settings(deadline=None, max_examples=60)

LINES = [
    ("hami-oom", "[HAMI-core ERROR (pid:1 thread=2 allocator.c:52)]: Device 0 OOM 100 / 90"),
    ("gpu-oom", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"),
    ("gpu-oom", "HIP out of memory. Tried to allocate"),
    ("gpu-oom", "NCCL WARN Cuda failure 2 'out of memory'"),
    ("gpu-oom", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes"),
    ("gpu-oom", "ValueError: No available memory for the cache blocks."),
    ("gpu-oom", "16 GiB KV cache is needed, which is larger than the available KV cache memory"),
    ("exec-format", "exec /opt/nvidia/nvidia_entrypoint.sh: exec format error"),
    ("exec-format", "standard_init_linux.go:228: exec user process caused: exec format error"),
    ("plugin-start", "Failed to start plugin: error waiting for MPS daemon"),
    ("gpu-memory-held-elsewhere", "Process 4242 has 70.12 GiB memory in use."),
    ("shm", "RuntimeError: unable to write to file </torch_77_1>"),
    ("shm", "Error while creating shared memory segment /dev/shm/nccl-a (size 9637888)"),
    ("shm", "posix_fallocate failed : No space left on device"),
    ("device-marked-unhealthy", "XidCriticalError: Xid=79 on Device=GPU-1a; marking"),
    ("device-marked-unhealthy", "'nvidia.com/gpu' device marked unhealthy: GPU-1a"),
    ("plugin-no-devices", "No devices found. Waiting indefinitely."),
    ("plugin-nvml", "Failed to initialize NVML: ERROR_UNKNOWN"),
    ("plugin-strategy", "Incompatible strategy detected auto"),
    ("plugin-start", "error starting plugins: unable to create plugin manager"),
    ("rdma-pool-empty", "no devices in device pool, creating empty resource server for hca"),
    ("rdma-netns", "incorrect RDMA subsystem network namespace"),
    ("driver-mismatch", "Failed to initialize NVML: Driver/library version mismatch"),
    ("driver-missing", "nvml error: driver not loaded"),
    ("driver-missing", "GPU driver auto installation is disabled."),
    ("driver-missing", "Waiting for GPU driver libraries to be available."),
    ("driver-not-in-container", "libcuda.so.1: cannot open shared object file"),
    ("gpu-memory-taken", "Free memory on device cuda:0 (12.5/79.1 GiB) on startup is less"),
    ("memlock", "ibv_reg_mr_iova2 failed with error Cannot allocate memory"),
    ("tensor-parallel", "Tensor parallel size (8) cannot be larger than the number of GPUs"),
    ("tensor-parallel", "World size (8) is larger than the number of available GPUs (4) in this"),
    ("tensor-parallel", "set tensor_parallel_size (8) to less than max local gpu count (4)"),
    ("tensor-parallel", "The number of required GPUs exceeds the total number of available GPUs"),
    ("tensor-parallel", "NotEnoughCUDADevices: `sharded` is true but only found 1 CUDA devices"),
    ("compute-domain-wait", "node not ready in ComputeDomain"),
    ("peer-lost", "Connection closed by remote peer train-1"),
    ("peer-awaited", "nslookup: can't resolve 'train-master-0': Name does not resolve"),
    (
        "peer-awaited",
        "[c10d] addresses of (t-0, 29500): Name or service not known",
    ),
    (
        "peer-awaited",
        "DistStoreError: Timed out after 601 s waiting for clients",
    ),
    ("no-gpu", "RuntimeError: No CUDA GPUs are available"),
    ("no-gpu", "No devices were found"),
    ("python-error", "ValueError: bad batch"),
    ("python-error", "[rank3]: torch.distributed.DistBackendError: NCCL error"),
    ("loading-model", "Loading safetensors checkpoint shards:  10% Completed"),
    ("engine-total-memory", "total_gpu_memory: 79.10 GiB"),
    ("driver-build", "modprobe: FATAL: Module nvidia not found"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_kinds(kind: str, line: str) -> None:
    found = {each.kind: each for each in pod_log.scan(f"start\n{line}\n")}
    assert kind in found
    assert (found[kind].number, found[kind].text) == (2, line)


def test_every_kind_has_a_line() -> None:
    assert {kind for kind, _ in LINES} == set(pod_log.PATTERNS)


@pytest.mark.parametrize(
    "line",
    [
        "INFO 08-20 model loaded, memory 12 GiB",
        "NCCL INFO Using network IB",
        "epoch 3 loss 0.12 (no error)",
        "out of memory of yesterday",
        "nvidia.com/gpu registered with the kubelet",
        "Killing time until the worker connects",
        "CUDA driver version 13.0, runtime version 12.8",
        "shm: /dev/shm has 64G",
        "the ValueErrorish: thing",
    ],
)
def test_look_alikes(line: str) -> None:
    assert pod_log.scan(line) == ()


@pytest.mark.parametrize(
    ("line", "kind", "groups"),
    [
        (LINES[0][1], "hami-oom", {"device": "0", "wanted": "100", "limit": "90"}),
        (
            "XidCriticalError: Xid=79 on Device=GPU-1a; x",
            "device-marked-unhealthy",
            {"xid": "79", "device": "GPU-1a"},
        ),
        ("device marked unhealthy: GPU-2", "device-marked-unhealthy", {"marked": "GPU-2"}),
        (
            "Free memory on device cuda:0 (12.5/79.1 GiB) on",
            "gpu-memory-taken",
            {"free": "12.5", "total": "79.1"},
        ),
        ("total memory = 79.1GiB", "engine-total-memory", {"gib": "79.1"}),
        ("x.y.ZError: w", "python-error", {"error": "x.y.ZError"}),
    ],
)
def test_groups(line: str, kind: str, groups: dict[str, str]) -> None:
    found = next(each for each in pod_log.scan(line) if each.kind == kind)
    assert found.groups == groups


def test_first_two_and_the_newest_of_a_kind() -> None:
    log = "".join(f"ValueError: number {n}\nother\n" for n in range(1, 6))
    found = pod_log.scan(log)
    assert [(each.number, each.text[-1]) for each in found] == [(1, "1"), (3, "2"), (9, "5")]


def test_kinds_are_kept_apart_and_in_order() -> None:
    log = "rdma\nNo devices found. Waiting indefinitely\nValueError: a\nValueError: b\n"
    assert [each.number for each in pod_log.scan(log)] == [2, 3, 4]


def test_colours_line_ends_and_length() -> None:
    assert pod_log.scan("\x1b[31mValueError: a\x1b[0m\r\n")[0].text == "ValueError: a"
    assert pod_log.scan("x" * 2100 + " CUDA out of memory") == ()
    late = pod_log.scan(" " * 2000 + "CUDA out of memory")
    assert [each.kind for each in late] == ["gpu-oom"]


@MODEST
@given(st.text(max_size=200), st.sampled_from([line for _, line in LINES]), st.text(max_size=50))
def test_any_text(before: str, line: str, after: str) -> None:
    for log in (before, f"{before}\n{line}{after}", f"{line}\n" * 5 + after):
        found = pod_log.scan(log)
        numbers = [each.number for each in found]
        assert numbers == sorted(numbers)
        assert all(
            sum(each.kind == kind for each in found) <= 3 for kind in {e.kind for e in found}
        )


@pytest.mark.parametrize("kind", pod_log.PATTERNS)
@MODEST
@given(st.data())
def test_what_a_pattern_finds_has_one_of_its_words(kind: str, data: st.DataObject) -> None:
    pattern = pod_log.PATTERNS[kind]
    compiled = re.compile(pattern.source, pattern.flags)
    line = data.draw(st.from_regex(compiled, alphabet=st.characters(codec="ascii")))
    assert any(word in line.lower() for word in pattern.words)
