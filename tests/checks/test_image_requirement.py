"""The grammar of NVIDIA_REQUIRE_*: blank is OR, comma is AND, variables are ANDed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.cuda import resolve_gpu
from gpudoctor.facts.node.versions import CudaVersion, DriverVersion
from gpudoctor_checks.image_requirement import Offer, brands_of, satisfied

A100 = resolve_gpu("NVIDIA A100-SXM4-80GB")
OFFER = Offer(CudaVersion(12, 2), DriverVersion(535, 129, 3), A100)


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        (["cuda>=12.2"], True),
        (["cuda>=12.2.1"], False),
        (["cuda>=12.10"], False),
        (["cuda>=12.9 brand=nvidia,driver>=535,driver<536"], True),
        (["cuda>=12.9 brand=tesla,driver>=535,driver<536"], False),
        (["cuda>=12.9 brand!=tesla"], True),
        (["cuda>=12.9", "cuda>=11.0"], False),
        (["arch>=8.0"], True),
        (["arch>8.0,cuda>=11"], False),
        (["driver=535.129.03"], True),
        (["CUDA>=11.0"], True),
        # other properties are skipped, alone or inside a group
        (["jetpack>=5"], True),
        (["jetpack>=5,cuda>=13.0"], False),
        (["", "  "], True),
        ([], True),
        # a value that is no version cannot be judged
        (["cuda>=latest"], None),
        (["cuda>=latest cuda>=11"], True),
    ],
)
def test_requirements(requirements: list[str], expected: bool | None) -> None:
    assert satisfied(requirements, OFFER) is expected


def test_what_the_node_does_not_tell_leaves_it_open() -> None:
    nothing = Offer(None, None, None)
    assert satisfied(["cuda>=12.2"], nothing) is None
    assert satisfied(["brand=tesla"], nothing) is None
    assert satisfied(["brand=tesla,cuda>=13"], Offer(CudaVersion(12, 2), None, None)) is False


@pytest.mark.parametrize(
    ("name", "branch", "brand"),
    [
        ("Tesla T4", 535, "tesla"),
        ("A100-SXM4-40GB", 450, "tesla"),
        ("NVIDIA A100-SXM4-40GB", 535, "nvidia"),
        ("NVIDIA GeForce RTX 3060", 535, "geforce"),
        ("Quadro RTX 6000", 535, "quadrortx"),
        ("NVIDIA RTX A6000", 535, "nvidiartx"),
        ("NVIDIA TITAN RTX", 535, "titanrtx"),
    ],
)
def test_brands(name: str, branch: int, brand: str) -> None:
    assert brand in brands_of(resolve_gpu(name), DriverVersion(branch))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(max_size=60), max_size=4))
def test_any_text_is_taken(requirements: list[str]) -> None:
    assert satisfied(requirements, OFFER) in (True, False, None)
