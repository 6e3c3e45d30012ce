"""CPU lists: what the kernel prints is read, what it never prints is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node import cpulist


@settings(deadline=None, max_examples=100)
@given(st.frozensets(st.integers(0, 4095), min_size=1))
def test_what_is_rendered_is_read_back(numbers: frozenset[int]) -> None:
    assert cpulist.parse(cpulist.render(numbers)) == numbers


def test_renders_ranges() -> None:
    assert cpulist.render({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"
    assert cpulist.render([]) == "none"


@pytest.mark.parametrize("text", ["N/A", "0-", "3-1", "0-99999999", "a,b", "-1"])
def test_refuses_what_is_no_list(text: str) -> None:
    assert cpulist.parse(text) is None


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=40))
def test_never_raises(text: str) -> None:
    cpulist.parse(text)
