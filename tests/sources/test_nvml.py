"""NVML through its real interface: a library compiled here from NVIDIA's header, without a GPU."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.facts.node.gpu import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_ANSWER,
    NOT_SUPPORTED,
    REMOTE_SWITCH,
    Clock,
    Gpu,
    NodeGpus,
    NotAvailable,
    Platform,
    RowHistogram,
)
from gpudoctor.facts.node.gpu_reader import parse_gpus, read_gpus
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Severity, Subject, Unknown
from gpudoctor.sources.child import Answer
from gpudoctor.sources.nvml import NvmlSource
from tests import nvml_library
from tests.hanging import mounted

PLENTY_S = 30.0
SHORT_S = 3.0
HOST = Subject("Host", "local")

Build = Callable[..., str]


@pytest.fixture
def library(tmp_path: Path) -> Build:
    """Return a function that compiles a library for a script and returns its path."""

    return lambda script="", *defines: nvml_library.build(tmp_path, script, *defines)


def read(library: str, deadline_s: float = PLENTY_S) -> NodeGpus:
    found = read_gpus(deadline_s, library)
    assert isinstance(found, NodeGpus), found
    return found


def one(library: str) -> Gpu:
    (gpu,) = read(library).gpus
    return gpu


def test_a_machine_of_eight_h100(library: Build) -> None:
    node = read(library("gpus=8;processes@3=2"))
    assert (node.failure, node.hung_in, node.count) == (None, None, 8)
    assert node.driver == DriverVersion(580, 126, 9)
    assert node.cuda == CudaVersion(13, 0)
    gpu = node.gpus[3]
    assert (gpu.name, gpu.pci, gpu.label) == ("NVIDIA H100 80GB HBM3", "0000:1b:00.0",
                                              "0000:1b:00.0")  # fmt: skip
    assert gpu.capability == CudaVersion(9, 0)
    assert (gpu.pcie_width, gpu.pcie_max_generation, gpu.temperature) == (16, 5, 34)
    assert not isinstance(gpu.links, NotAvailable)
    assert len(gpu.links) == 18
    assert all(link.active for link in gpu.links)
    assert not isinstance(gpu.fabric, NotAvailable)
    assert (gpu.fabric.state, gpu.fabric.cluster[:4]) == (3, "abab")
    assert not isinstance(gpu.processes, NotAvailable)
    assert [(process.pid, process.memory) for process in gpu.processes] == [
        (4000, None), (4001, None),
    ]  # fmt: skip
    assert node.gpus[0].processes == ()


def test_what_an_h100_tells_besides(library: Build) -> None:
    gpu = read(library(nvml_library.H100 + ";clock@1=345;reasons@1=4;banks_used_up@1=2")).gpus[1]
    assert gpu.gsp_firmware == "580.126.09"
    assert (gpu.minor, gpu.performance_state, gpu.clock_reasons) == (1, 0, 4)
    assert not isinstance(gpu.clocks, NotAvailable)
    assert gpu.clocks["sm"] == Clock(345, 1980, 1980)
    assert gpu.row_histogram == RowHistogram(638, 0, 0, 0, 2)
    assert gpu.platform == Platform("1820123456789", slot=12, tray=3, host=1, peer_type=2, module=2)
    assert (gpu.numa, gpu.cpus) == (frozenset({0}), frozenset(range(72)))
    assert gpu.ancestors == (40, None, 40, 40, 50, 50, 50, 50)
    assert not isinstance(gpu.links, NotAvailable)
    assert (gpu.links[0].remote_type, gpu.links[0].remote_pci) == (REMOTE_SWITCH, "0000:03:00.0")
    assert set(gpu.links[0].errors) == {"replay", "recovery", "crc"}


def test_the_fabric_is_asked_in_the_form_that_the_driver_knows(library: Build) -> None:
    mask = 1 | 2 << 2 | 4 << 8 | 2 << 14  # bandwidth degraded, routes fine, no partition
    script = f"gpus=2;health=2;health_mask={mask};fabric_form@1=2"
    newer, older = read(library(script)).gpus
    assert not isinstance(newer.fabric, NotAvailable)
    assert newer.fabric.health_summary == 2
    assert newer.fabric.complaints == ("bandwidth degraded", "wrong configuration: no partition")
    assert not isinstance(older.fabric, NotAvailable)
    assert (older.fabric.health_summary, older.fabric.health_mask) == (None, mask)


def test_gb200_counts_what_nvlink_5_counts(library: Build) -> None:
    gpu = read(library(nvml_library.GB200 + ";counter214@3=5;counter235@3=900")).gpus[3]
    assert gpu.memory_node == 26
    assert not isinstance(gpu.clocks, NotAvailable)
    assert gpu.clocks["sm"].application is None
    assert not isinstance(gpu.links, NotAvailable)
    assert len(gpu.links) == 18
    errors = gpu.links[17].errors
    assert (errors["recoveries_failed"], errors["fec_bin_0"], errors["recoveries"]) == (5, 900, 0)
    assert errors["symbol_ber"] == 5e-15
    assert errors["effective_ber"] == 0.0


def test_a100_with_mig(library: Build) -> None:
    gpu = read(library(nvml_library.A100_MIG)).gpus[1]
    assert not isinstance(gpu.mig_mode, NotAvailable)
    assert gpu.mig_mode.current
    assert not isinstance(gpu.mig_devices, NotAvailable)
    first, _, third = gpu.mig_devices
    assert first.uuid == "MIG-00000000-0000-5000-8000-000000000008"
    assert first.profile == "1g.10gb"
    assert (third.index, third.gpu_instance, third.compute_instance) == (2, 9, 0)
    for value in (gpu.remapped_rows, gpu.row_histogram, gpu.platform, gpu.fabric):
        assert isinstance(value, NotAvailable)
        assert value.code == NOT_SUPPORTED
        assert value.normal


@pytest.mark.parametrize(
    ("part", "refused"),
    [
        ("L40S", {"links", "mig_mode", "fabric", "platform", "memory_node"}),
        ("RTX 4090", {"links", "mig_mode", "fabric", "platform", "memory_node", "ecc_mode",
                      "remapped_rows", "row_histogram", "retired_pending", "sram_threshold"}),
        ("GB200", set()),
    ],
)  # fmt: skip
def test_what_a_part_does_not_have_is_not_available(
    library: Build, part: str, refused: set[str]
) -> None:
    for gpu in read(library(nvml_library.PARTS[part])).gpus:
        missing = {
            name
            for name in gpu.__struct_fields__
            if isinstance(value := getattr(gpu, name), NotAvailable) and value.normal
        }
        assert missing == refused
        assert gpu.clocks
        assert gpu.gsp_firmware == "580.126.09"


CALLS = re.findall(
    r"^(?:nvmlReturn_t |NUMBER\(|CLOCK\()(nvmlDevice\w+)",
    (Path(nvml_library.__file__).parent / "data" / "fake_nvml.c").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize("code", [3, 4, 15, 999])
def test_any_call_may_be_refused_and_costs_only_its_own_value(library: Build, code: int) -> None:
    refusals = [call for call in CALLS if call != "nvmlDeviceGetHandleByIndex_v2"]
    node = read(library(";".join(["gpus=2", *(f"{call}@0={code}" for call in refusals)])))
    refused, whole = node.gpus
    assert refused.handle is None
    codes = {
        value.code
        for name in refused.__struct_fields__
        if isinstance(value := getattr(refused, name), NotAvailable)
    }
    assert codes == {code}
    assert whole.name == "NVIDIA H100 80GB HBM3"
    assert not isinstance(whole.links, NotAvailable)


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkRemotePciInfo_v2",
        "nvmlDeviceGetTopologyCommonAncestor",
    ],
)
def test_a_call_of_any_kind_may_hang(library: Build, call: str) -> None:
    node = read(library(f"{nvml_library.GB200};mig_devices@0=1;{call}@0=hang"), SHORT_S)
    assert node.hung_in is not None
    assert node.hung_in.endswith("of GPU 0")


def test_a_call_that_the_library_lacks(library: Build) -> None:
    gpu = one(library("", "-DWITHOUT_CLOCK_REASONS"))
    assert isinstance(gpu.clock_reasons, NotAvailable)
    assert gpu.clock_reasons.code == FUNCTION_NOT_FOUND
    assert gpu.temperature == 34


@pytest.mark.parametrize("code", [4, 9, 18, 999])
def test_nvml_that_does_not_start(library: Build, code: int) -> None:
    node = read(library(f"nvmlInitWithFlags={code}"))
    assert node.failure is not None
    assert node.failure.code == code
    assert node.gpus == ()


def test_a_lost_gpu_leaves_the_others(library: Build) -> None:
    node = read(library(f"gpus=2;nvmlDeviceGetHandleByIndex_v2@0={GPU_IS_LOST}"))
    assert node.gpus[0].handle is not None
    assert node.gpus[0].handle.code == GPU_IS_LOST
    assert node.gpus[0].label == "GPU 0"
    assert node.gpus[1].name == "NVIDIA H100 80GB HBM3"


def test_a_call_that_hangs_costs_the_bound_and_keeps_what_came_before(library: Build) -> None:
    node = read(library("gpus=2;nvmlDeviceGetTemperature@1=hang"), SHORT_S)
    assert node.hung_in == "temperature of GPU 1"
    assert node.gpus[0].temperature == 34
    assert node.gpus[1].name == "NVIDIA H100 80GB HBM3"
    assert isinstance(node.gpus[1].temperature, NotAvailable)
    assert node.gpus[1].temperature.code == NO_ANSWER
    assert not node.gpus[1].temperature.normal


def test_a_start_that_hangs_is_said(library: Build) -> None:
    node = read(library("nvmlInitWithFlags=hang"), SHORT_S)
    assert (node.hung_in, node.gpus, node.ended) == ("init", (), True)


def test_a_process_that_cannot_be_killed_is_left_and_none_is_started_beside_it(
    library: Build, tmp_path: Path
) -> None:
    """The library lies on a file system that never answers: SIGKILL does nothing there."""
    source = NvmlSource()
    with mounted(tmp_path, "/lib") as point:
        answer = source.read(SHORT_S, str(point / "lib" / "libnvidia-ml.so.1"))
        assert isinstance(answer, Answer)
        assert (answer.in_time, answer.ended) == (False, False)
        first = source._stuck
        assert first is not None
        node = parse_gpus(answer, HOST)
        assert isinstance(node, NodeGpus)
        assert (node.hung_in, node.ended) == ("library", False)
        again = source.read(PLENTY_S, library())
        assert again == Answer("", in_time=False, ended=False), "it costs its bound once"
        assert source._stuck is first
    first.wait(PLENTY_S)
    assert isinstance(source.read(PLENTY_S, library()), Answer), "the call came back"


@pytest.mark.parametrize(("ended", "severity"), [(True, Severity.WARNING), (False, Severity.ERROR)])
def test_a_hung_driver_is_a_finding_of_its_own(*, ended: bool, severity: Severity) -> None:
    late = Answer('["?", null, "init"]\n', in_time=False, ended=ended)
    facts = parse_gpus(late, HOST)
    found = diagnosis.diagnose(registry.load(), [facts])
    (hang,) = found.findings
    assert (hang.name, hang.severity) == ("driver-not-answering", severity)
    assert found.unknown, "and what it would have told is unknown"


def test_no_library_is_unknown_with_the_reason(tmp_path: Path) -> None:
    found = read_gpus(PLENTY_S, str(tmp_path / "absent.so"))
    assert isinstance(found, Unknown)
    here = read_gpus(PLENTY_S)
    if isinstance(here, Unknown):
        assert "libnvidia-ml" in here.why


def test_none_is_started_while_one_cannot_be_ended(library: Build) -> None:
    source = NvmlSource()
    stuck = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        source._stuck = stuck
        answer = source.read(PLENTY_S, library())
        assert answer == Answer("", in_time=False, ended=False)
        node = parse_gpus(answer, HOST)
        assert isinstance(node, NodeGpus)
        assert (node.hung_in, node.ended) == ("an earlier call", False)
    finally:
        stuck.kill()
        stuck.wait()
    again = source.read(PLENTY_S, library())
    assert isinstance(again, Answer)
    assert again.in_time
