"""The plainest CEL selectors: equalities of driver and attributes, joined by &&."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import cel

GPU = {"type": "gpu", "productName": "NVIDIA L4", "index": "0", "other.example/rack": "r1"}
CLASS = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (CLASS, True),
        (CLASS.replace("'gpu'", "'mig'"), False),
        ('device.driver == "gpu.nvidia.com"', True),
        ('device.driver == "gpu.amd.com"', False),
        ('device.attributes["gpu.nvidia.com"].productName == "NVIDIA L4"', True),
        ('device.attributes["gpu.nvidia.com"].index == 0', True),
        ('device.attributes["gpu.nvidia.com"].index == 1', False),
        ('device.attributes["other.example"].rack == "r1"', True),
        ('device.attributes["gpu.nvidia.com"].rack == "r1"', False),
    ],
)
def test_plain(selector: str, expected: bool) -> None:
    assert cel.is_plain(selector)
    assert cel.may_match(selector, "gpu.nvidia.com", GPU) is expected


@pytest.mark.parametrize(
    "selector",
    [
        "",
        f"{CLASS} || true",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        "device.attributes['gpu.nvidia.com'].productName.matches('.*H100.*')",
        "!(device.driver == 'gpu.nvidia.com')",
        "device.driver == 'gpu.amd.com' ".ljust(11_000),
    ],
)
def test_any_other_may_match(selector: str) -> None:
    assert not cel.is_plain(selector)
    assert cel.may_match(selector, "gpu.nvidia.com", GPU)


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text(selector: str, driver: str, attributes: dict[str, str]) -> None:
    cel.is_plain(selector)
    cel.may_match(selector, driver, attributes)
