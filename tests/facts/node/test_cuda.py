"""Versions and names: compared as numbers, matched by whole words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.cuda import GpuClass, cuda_level, resolve_gpu
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion, parse_cuda, parse_driver


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("NVIDIA A10", "8.6"),
        ("NVIDIA A10G", "8.6"),
        ("NVIDIA A10-24Q", "8.6"),
        ("NVIDIA A100-SXM4-80GB", "8.0"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "8.0"),
        ("GRID A100D-10C", None),
        ("NVIDIA A16", "8.6"),
        ("NVIDIA L4", "8.9"),
        ("NVIDIA L40", "8.9"),
        ("NVIDIA-L40S-SHARED", "8.9"),
        ("NVIDIA H20", "9.0"),
        ("NVIDIA H200 NVL", "9.0"),
        ("NVIDIA GH200 480GB", "9.0"),
        ("NVIDIA B200", "10.0"),
        ("NVIDIA GB200", "10.0"),
        ("NVIDIA GB300", "10.3"),
        ("NVIDIA GB10", "12.1"),
        ("NVIDIA RTX 5000 Ada Generation", "8.9"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "8.9"),
        ("NVIDIA RTX A5000", "8.6"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("NVIDIA GeForce RTX 5090 D", "12.0"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("Quadro RTX 5000", "7.5"),
        ("NVIDIA TITAN RTX", "7.5"),
        ("NVIDIA TITAN V", "7.0"),
        ("NVIDIA TITAN Xp", "6.1"),
        ("GeForce GTX TITAN X", "5.2"),
        ("NVIDIA GeForce GTX 1660 SUPER", "7.5"),
        ("Tesla V100S-PCIE-32GB", "7.0"),
        ("Tesla T4", "7.5"),
        ("Tesla M60", "5.2"),
        ("Tesla K80", "3.7"),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_names_resolve_without_prefix_traps(name: str, capability: str | None) -> None:
    gpu = resolve_gpu(name)
    assert (str(gpu.architecture.capability) if gpu else None) == capability


def test_the_capability_that_was_read_decides_over_the_name() -> None:
    gpu = resolve_gpu("NVIDIA A100", "9.0")
    assert gpu is not None
    assert gpu.architecture.name == "Hopper"
    assert gpu.gpu_class is None
    same = resolve_gpu("NVIDIA A100", "8.0")
    assert same is not None
    assert same.gpu_class is GpuClass.DATACENTER


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("580.126.09", "580.126.09"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu", "470.256.02"),
        ("455.32", "455.32"),
        ("R580", "R580"),
        ("580", "R580"),
        ("12.8", None),
        ("", None),
    ],
)
def test_drivers(text: str, expected: str | None) -> None:
    driver = parse_driver(text)
    assert (str(driver) if driver else None) == expected


def test_drivers_compare_as_numbers_and_a_branch_is_its_newest_release() -> None:
    assert DriverVersion(580, 95, 5) < DriverVersion(580, 126, 9) < DriverVersion(580)
    assert DriverVersion(580) < DriverVersion(590, 44, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12.8.1", "12.8"),
        ("13.4.2", "13.4"),
        ("12.10", "12.10"),
        ("13", "13.0"),
        ("cu128", "12.8"),
        ("torch-2.8.0+cu118", "11.8"),
        ("12.4.1-cudnn-devel-ubuntu22.04", "12.4"),
        ("latest", None),
        ("", None),
    ],
)
def test_cuda_versions(text: str, expected: str | None) -> None:
    version = parse_cuda(text)
    assert (str(version) if version else None) == expected


def test_a_branch_between_two_offers_the_lower_ones_level() -> None:
    assert cuda_level(DriverVersion(600)) == CudaVersion(13, 2)
    assert cuda_level(DriverVersion(999)) is None
    assert cuda_level(DriverVersion(340)) is None


@settings(deadline=None, max_examples=150)
@given(st.text(max_size=80))
def test_any_text_is_taken(text: str) -> None:
    parse_driver(text)
    parse_cuda(text)
    resolve_gpu(text, text)
