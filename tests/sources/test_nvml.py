"""NVML through its real interface: a library compiled here from NVIDIA's header, without a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudoctor.facts.node.gpu import (
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    NO_ANSWER,
    NOT_SUPPORTED,
    Gpu,
    NodeGpus,
    NotAvailable,
)
from gpudoctor.facts.node.gpu_reader import read_gpus
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor.report import Unknown
from gpudoctor.sources.nvml import NvmlSource
from tests import nvml_library

PLENTY_S = 30.0
SHORT_S = 1.5

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


def test_a100_with_mig(library: Build) -> None:
    gpu = one(library(
        "name=NVIDIA A100-SXM4-80GB;major=8;mig=1;mig_devices=3;links=12;"
        "nvmlDeviceGetRemappedRows=3;nvmlDeviceGetGpuFabricInfoV=3"
    ))  # fmt: skip
    assert not isinstance(gpu.mig_mode, NotAvailable)
    assert gpu.mig_mode.current
    assert not isinstance(gpu.mig_devices, NotAvailable)
    assert len(gpu.mig_devices) == 3
    assert isinstance(gpu.remapped_rows, NotAvailable)
    assert gpu.remapped_rows.code == NOT_SUPPORTED
    assert gpu.remapped_rows.normal


@pytest.mark.parametrize(
    ("name", "capability"),
    [("NVIDIA L40S", (8, 9)), ("NVIDIA GeForce RTX 4090", (8, 9)), ("NVIDIA GB200", (10, 0))],
)
def test_parts_without_nvlink_ecc_or_mig(
    library: Build, name: str, capability: tuple[int, int]
) -> None:
    refused = "nvmlDeviceGetNvLinkState=3;nvmlDeviceGetEccMode=3;nvmlDeviceGetMigMode=3"
    gpu = one(library(f"name={name};major={capability[0]};minor={capability[1]};{refused}"))
    assert gpu.name == name
    assert gpu.capability == CudaVersion(*capability)
    for value in (gpu.links, gpu.ecc_mode, gpu.mig_mode):
        assert isinstance(value, NotAvailable)
        assert value.normal


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


def test_a_start_that_hangs_is_unknown(library: Build) -> None:
    found = read_gpus(SHORT_S, library("nvmlInitWithFlags=hang"))
    assert isinstance(found, Unknown)
    assert "in time" in found.why


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
        refused = source.read(PLENTY_S, library())
        assert isinstance(refused, str)
        assert "hangs" in refused
    finally:
        stuck.kill()
        stuck.wait()
    assert not isinstance(source.read(PLENTY_S, library()), str)
