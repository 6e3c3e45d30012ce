"""The scheduler's message: every version's form, random histograms, and garbage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import scheduler_message
from gpudoctor.facts.kubernetes.scheduler_message import Reason

MODEST = settings(deadline=None, max_examples=60)


def pairs(reasons: tuple[Reason, ...]) -> list[tuple[int | None, str]]:
    return [(reason.count, reason.text) for reason in reasons]


def test_current_form() -> None:
    parsed = scheduler_message.parse(
        "0/5 nodes are available: 1 node(s) had untolerated taint {node-role: x}, "
        "2 Insufficient nvidia.com/gpu, 2 node(s) didn't match Pod's node affinity/selector. "
        "preemption: 0/5 nodes are available: 3 Preemption is not helpful for scheduling, "
        "2 No preemption victims found for incoming pod."
    )
    assert parsed.nodes == 5
    assert pairs(parsed.reasons) == [
        (1, "node(s) had untolerated taint {node-role: x}"),
        (2, "Insufficient nvidia.com/gpu"),
        (2, "node(s) didn't match Pod's node affinity/selector"),
    ]
    assert parsed.insufficient() == {"nvidia.com/gpu": 2}
    assert parsed.unhelpful() == 3
    assert parsed.without_victims() == 2
    assert parsed.reasons[0].taint == ("node-role", "x")
    assert parsed.count("NODE AFFINITY/selector") == 2


@pytest.mark.parametrize(
    ("message", "nodes", "reasons"),
    [
        ("", None, []),
        ("0/3 nodes are available", 3, []),
        ("0/3 nodes are available: 3 Insufficient cpu", 3, [(3, "Insufficient cpu")]),
        (
            "0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient memory.",
            3,
            [(1, "Insufficient cpu"), (2, "Insufficient memory")],
        ),
        (
            "0/2 nodes are unavailable: 2 Insufficient nvidia.com/gpu.",
            2,
            [(2, "Insufficient nvidia.com/gpu")],
        ),
        (
            "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            1,
            [(None, "pod has unbound immediate PersistentVolumeClaims")],
        ),
        ("running PreBind plugin: timed out", None, [(None, "running PreBind plugin: timed out")]),
        (
            "0/1 nodes are available: 1 cannot allocate all claims. still not schedulable",
            1,
            [(1, "cannot allocate all claims")],
        ),
        (
            "0/1 nodes are available:\n 1   Insufficient\tcpu.\r\n",
            1,
            [(1, "Insufficient cpu")],
        ),
        ("0/9999999999 nodes are available: 1 x", None, [(1, "x")]),
    ],
)
def test_forms(message: str, nodes: int | None, reasons: list[tuple[int | None, str]]) -> None:
    parsed = scheduler_message.parse(message)
    assert parsed.nodes == nodes
    assert pairs(parsed.reasons) == reasons
    assert parsed.preemption == ()


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("node(s) had taint {a: b}, that the pod didn't tolerate", ("a", "b")),
        ("node(s) had untolerated taint {a: }", ("a", "")),
        ("node(s) had untolerated taint {a/b.c: d}", ("a/b.c", "d")),
        ("node(s) had untolerated taint(s)", None),
    ],
)
def test_taints(text: str, taint: tuple[str, str] | None) -> None:
    assert Reason(1, text).taint == taint


def test_old_taint_form_keeps_its_comma() -> None:
    parsed = scheduler_message.parse(
        "0/2 nodes are available: 2 node(s) had taint {a: b}, that the pod didn't tolerate."
    )
    assert pairs(parsed.reasons) == [(2, "node(s) had taint {a: b}, that the pod didn't tolerate")]


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("Insufficient nvidia.com/gpu", "nvidia.com/gpu"),
        ("Insufficient cpu.", "cpu"),
        ("node(s) didn't have enough resource", None),
        ("Insufficient cpu and more", None),
    ],
)
def test_insufficient(text: str, resource: str | None) -> None:
    assert Reason(1, text).insufficient == resource


def test_reason_without_a_count_counts_once() -> None:
    parsed = scheduler_message.parse("no volume for the pod")
    assert parsed.count("volume") == 1
    assert parsed.count("taint") == 0
    assert scheduler_message.parse("Insufficient cpu").insufficient() == {"cpu": 0}


TEXTS = st.sampled_from(
    [
        "Insufficient nvidia.com/gpu",
        "Insufficient cpu",
        "node(s) had untolerated taint {team: ml}",
        "node(s) didn't match Pod's node affinity/selector",
        "node(s) were unschedulable",
        "Too many pods",
    ]
)
HISTOGRAM = st.lists(st.tuples(st.integers(1, 10**6), TEXTS), min_size=1, max_size=5)
VICTIMS = st.lists(
    st.tuples(
        st.integers(1, 10**6),
        st.sampled_from([scheduler_message.NOT_HELPFUL, scheduler_message.NO_VICTIMS]),
    ),
    max_size=2,
)


@MODEST
@given(HISTOGRAM, VICTIMS, st.integers(1, 10**6), st.sampled_from([".", ""]))
def test_random_histograms_come_back(
    histogram: list[tuple[int, str]], victims: list[tuple[int, str]], nodes: int, end: str
) -> None:
    def listed(entries: list[tuple[int, str]]) -> str:
        return ", ".join(f"{count} {text}" for count, text in entries)

    message = f"0/{nodes} nodes are available: {listed(histogram)}."
    if victims:
        message += f" preemption: 0/{nodes} nodes are available: {listed(victims)}{end}"
    parsed = scheduler_message.parse(message)
    assert parsed.nodes == nodes
    assert pairs(parsed.reasons) == histogram
    assert pairs(parsed.preemption) == victims
    assert parsed.count("") == sum(count for count, _ in histogram)


@MODEST
@given(st.text(max_size=200) | st.text(alphabet="0/1 nodes are available:,.{}", max_size=80))
def test_garbage(message: str) -> None:
    parsed = scheduler_message.parse(message)
    assert parsed.count("") >= 0
    for reason in (*parsed.reasons, *parsed.preemption):
        assert reason.text == reason.text.strip()
        assert reason.taint is None or len(reason.taint) == 2


def test_huge_message_is_cut() -> None:
    parsed = scheduler_message.parse("0/1 nodes are available: " + "1 Insufficient cpu, " * 10_000)
    assert 3000 < parsed.count("Insufficient") < 4000
