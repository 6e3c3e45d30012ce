"""Kueue's QuotaReserved messages: taken apart, and which part decides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import kueue_message
from gpudoctor.facts.kubernetes.kueue_message import Hold, decisive, parse

NEVER = (
    "insufficient quota for nvidia.com/gpu in flavor h100, previously considered podsets requests "
    "(0) + current podset request (32) > maximum capacity (24)"
)
UNUSED = "insufficient unused quota for nvidia.com/gpu in flavor {flavor}, 4 more needed"
PIECES = (
    "couldn't assign flavors to pod set main: ",
    NEVER,
    UNUSED.format(flavor="a100"),
    "untolerated taint {a b NoSchedule <nil>} in flavor spot",
    'topology "t" allows to fit only 2 out of 4 pod(s). Total nodes: 4; excluded: taint "x": 2',
    "no topology domains at level: rack",
    "; ",
    ", ",
    "(",
    "\x1b[31m",
    "\r\n",
)


@pytest.mark.parametrize(
    ("text", "hold", "fields"),
    [
        (NEVER, Hold.OVER_MAXIMUM, {"wanted": "32", "limit": "24", "flavor": "h100"}),
        (
            "insufficient quota for cpu in flavor x, request > maximum capacity (5 > 4)",
            Hold.OVER_MAXIMUM,
            {"wanted": "5", "limit": "4", "resource": "cpu"},
        ),
        ("insufficient quota for cpu flavor x in ClusterQueue", Hold.OVER_MAXIMUM, {"flavor": "x"}),
        (UNUSED.format(flavor="x"), Hold.IN_USE, {"more": "4", "flavor": "x"}),
        (
            "insufficient unused quota in cohort for cpu flavor x, 1 more needed",
            Hold.IN_USE,
            {"resource": "cpu", "more": "1"},
        ),
        ("borrowing limit for cpu flavor x exceeded", Hold.IN_USE, {"resource": "cpu"}),
        (
            "untolerated taint {k v NoSchedule <nil>} in flavor x",
            Hold.NO_FLAVOR,
            {"what": "{k v NoSchedule <nil>}", "flavor": "x"},
        ),
        ("flavor x doesn't match node affinity", Hold.NO_FLAVOR, {"flavor": "x"}),
        ("no requested topology level: rack", Hold.NO_FLAVOR, {"what": "rack"}),
        ("resource cpu unavailable in ClusterQueue", Hold.NOT_OFFERED, {"resource": "cpu"}),
        ("no topology domains at level: rack", Hold.TOPOLOGY_LABEL, {"what": "rack"}),
        ('topology "t" doesn\'t allow to fit any of 4 pod(s)', Hold.TOPOLOGY, {"wanted": "4"}),
        (
            'topology "t" allows to fit only 1 out of 4 slice(s)',
            Hold.TOPOLOGY,
            {"limit": "1", "wanted": "4"},
        ),
        (
            'topology "t" doesn\'t allow to fit; 1/2 slice(s) fit on level rack',
            Hold.TOPOLOGY,
            {"what": "t"},
        ),
    ],
)
def test_each_reason(text: str, hold: Hold, fields: dict[str, str]) -> None:
    (found,) = parse(f"couldn't assign flavors to pod set main: {text}")
    assert found.hold is hold
    assert found.pod_set == "main"
    assert {key: getattr(found, key) for key in fields} == fields


def test_message_of_another_form_says_nothing() -> None:
    assert parse("LocalQueue lq doesn't exist") == ()
    assert decisive(()) == ()


def test_nearest_flavor_decides_for_a_pod_set_and_the_worst_pod_set_for_all() -> None:
    either = f"couldn't assign flavors to pod set a: {NEVER}, {UNUSED.format(flavor='x')}"
    assert {r.hold for r in decisive(parse(either))} == {Hold.IN_USE}
    both = f"{either}; couldn't assign flavors to pod set b: {NEVER}"
    found = decisive(parse(both))
    assert [(r.hold, r.pod_set) for r in found] == [(Hold.OVER_MAXIMUM, "b")]


def test_flavors_of_two_groups_are_both_needed() -> None:
    text = f"couldn't assign flavors to pod set a: {NEVER}, {UNUSED.format(flavor='x')}"
    groups = [frozenset({"h100"}), frozenset({"x"})]
    assert {r.hold for r in decisive(parse(text), groups)} == {Hold.OVER_MAXIMUM}


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=30), max_size=20))
def test_any_text_is_taken(parts: list[str]) -> None:
    refusals = parse("".join(parts))
    found = decisive(refusals, [frozenset({"h100", "a100"}), frozenset({"spot"})])
    assert set(found) <= set(refusals)
    assert bool(found) is bool(refusals)
    assert len({refusal.hold for refusal in found}) <= 1


def test_huge_message_is_cut() -> None:
    assert len(parse(f"{NEVER}, " * 5000)) <= kueue_message._MAX_CHARS // len(NEVER)
