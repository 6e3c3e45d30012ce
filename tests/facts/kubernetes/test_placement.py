"""Where a pod can go: the scheduler's filters, one by one, and that permission never harms."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import parse, placement
from gpudoctor.facts.kubernetes.model import (
    Meta,
    Node,
    Occupant,
    Pod,
    Requirement,
    SelectorTerm,
    Taint,
    Toleration,
)
from gpudoctor.facts.kubernetes.placement import NodeFit, Shortage

MODEST = settings(deadline=None, max_examples=60)
GPU = "nvidia.com/gpu"


def node(**more: Any) -> Node:
    labels = more.pop("labels", {})
    offered = {GPU: Decimal(more.pop("gpus", 8))}
    return Node(meta=Meta("Node", "gpu-1", labels=labels), allocatable=offered, **more)


def pod(gpus: int = 1, **more: Any) -> Pod:
    return Pod(meta=Meta("Pod", "p", "team"), requests={GPU: Decimal(gpus)}, **more)


def occupant(gpus: int, **more: str) -> Occupant:
    amounts = {GPU: Decimal(gpus)} | {key: Decimal(value) for key, value in more.items()}
    return Occupant("other", "o", "gpu-1", amounts)


class TestTolerates:
    @pytest.mark.parametrize(
        ("toleration", "taint", "expected"),
        [
            (Toleration("a", "Equal", "b", "NoSchedule"), Taint("a", "b", "NoSchedule"), True),
            (Toleration("a", "Equal", "b"), Taint("a", "b", "NoExecute"), True),
            (Toleration("a", "Equal", "b", "NoExecute"), Taint("a", "b", "NoSchedule"), False),
            (Toleration("a", "Equal", "c"), Taint("a", "b", "NoSchedule"), False),
            (Toleration("a", "Exists"), Taint("a", "b", "NoSchedule"), True),
            (Toleration("b", "Exists"), Taint("a", "b", "NoSchedule"), False),
            (Toleration("", "Exists"), Taint("a", "b", "NoSchedule"), True),
            (Toleration("", "Exists", "", "NoExecute"), Taint("a", "b", "NoSchedule"), False),
            (Toleration("", "Equal", "b"), Taint("a", "b", "NoSchedule"), False),
            (Toleration("", "Equal", ""), Taint("", "", "NoSchedule"), False),
            (Toleration("a"), Taint("a", "", "NoSchedule"), True),
        ],
    )
    def test_rules_of_the_api(self, toleration: Toleration, taint: Taint, expected: bool) -> None:
        assert toleration.tolerates(taint) is expected

    def test_blocking_effects(self) -> None:
        taints = [Taint("a", "", e) for e in ("NoSchedule", "NoExecute", "PreferNoSchedule", "")]
        assert placement.untolerated([], taints) == tuple(taints[:2])
        assert placement.untolerated([Toleration("a", "Exists", "", "NoExecute")], taints) == (
            taints[0],
        )


class TestMatches:
    @pytest.mark.parametrize(
        ("operator", "values", "value", "expected"),
        [
            ("In", ("a", "b"), "b", True),
            ("In", ("a", "b"), "c", False),
            ("In", ("a",), None, False),
            ("NotIn", ("a",), "b", True),
            ("NotIn", ("a",), "a", False),
            ("NotIn", ("a",), None, True),
            ("Exists", (), "a", True),
            ("Exists", (), "", True),
            ("Exists", (), None, False),
            ("DoesNotExist", (), None, True),
            ("DoesNotExist", (), "", False),
            ("Gt", ("4",), "5", True),
            ("Gt", ("4",), "4", False),
            ("Gt", ("4",), "3", False),
            ("Lt", ("4",), "3", True),
            ("Lt", ("4",), "4", False),
            ("Lt", ("4",), "5", False),
            ("Gt", ("4",), "many", False),
            ("Gt", ("few",), "4", False),
            ("Gt", (), "4", False),
            ("Lt", ("4",), None, False),
            ("Like", ("a",), "a", False),
        ],
    )
    def test_operators(
        self, operator: str, values: tuple[str, ...], value: str | None, expected: bool
    ) -> None:
        labels = {"key": value} if value is not None else {"other": "x"}
        assert placement.matches(Requirement("key", operator, values), labels) is expected

    def test_written_for_people(self) -> None:
        assert str(Requirement("a", "In", ("b", "c"))) == "a In [b, c]"
        assert str(Requirement("a", "Exists")) == "a Exists"
        assert str(Taint("a", "b", "NoSchedule")) == "a=b:NoSchedule"
        assert str(Taint("a", "", "NoSchedule")) == "a:NoSchedule"


A = Requirement("a", "In", ("1",))
B = Requirement("b", "Exists")
NAMED = Requirement("metadata.name", "In", ("gpu-1",))


class TestTerms:
    @pytest.mark.parametrize(
        ("terms", "labels", "expected"),
        [
            ([SelectorTerm((A,))], {"a": "1"}, ()),
            ([SelectorTerm((A,))], {}, ("a In [1]",)),
            ([SelectorTerm((A, B))], {"a": "1"}, ("b Exists",)),
            ([SelectorTerm((A, B)), SelectorTerm((A,))], {}, ("a In [1]",)),
            ([SelectorTerm((A,)), SelectorTerm((A, B))], {}, ("a In [1]",)),
            ([SelectorTerm((A,)), SelectorTerm((B,))], {"b": "x"}, ()),
            ([SelectorTerm((), (NAMED,))], {}, ()),
            (
                [SelectorTerm((), (Requirement("metadata.name", "In", ("x",)),))],
                {},
                ("metadata.name In [x]",),
            ),
            ([SelectorTerm()], {}, ("an empty term, which matches no node",)),
            ([], {}, ("no term at all",)),
        ],
    )
    def test_nearest(
        self, terms: list[SelectorTerm], labels: dict[str, str], expected: tuple[str, ...]
    ) -> None:
        assert placement.unmatched_terms(terms, node(labels=labels)) == expected

    def test_selector_and_affinity_both_hold(self) -> None:
        wants = pod(node_selector={"pool": "x"}, node_affinity=(SelectorTerm((A,)),))
        assert placement.unmatched(wants, node()) == ("pool=x", "a In [1]")
        assert placement.unmatched(wants, node(labels={"pool": "x", "a": "1"})) == ()
        assert placement.unmatched(pod(), node()) == ()


class TestFit:
    @pytest.mark.parametrize(
        ("wanted", "in_use", "short"),
        [
            (8, [], None),
            (9, [], (9, 8, 8)),
            (7, [1], None),
            (8, [1], (8, 7, 8)),
            (1, [4, 4], (1, 0, 8)),
            (1, [9], (1, 0, 8)),
            (0, [9], None),
        ],
    )
    def test_capacity(
        self, wanted: int, in_use: list[int], short: tuple[int, int, int] | None
    ) -> None:
        found = placement.fit(pod(wanted), node(), [occupant(n) for n in in_use])
        expected = Shortage(GPU, *map(Decimal, short)) if short else None
        assert found.shortage(GPU) == expected
        assert found.shortage("cpu") is None
        assert found.free[GPU] == 8 - sum(in_use)
        assert found.is_admitted

    def test_resource_that_the_node_does_not_have(self) -> None:
        found = placement.fit(pod(1), node(gpus=0), [occupant(1, cpu="4")])
        assert found.shortage(GPU) == Shortage(GPU, Decimal(1), Decimal(0), Decimal(0))
        assert "cpu" not in found.free

    def test_allocatable_is_not_changed(self) -> None:
        here = node()
        placement.fit(pod(), here, [occupant(3)])
        assert here.allocatable == {GPU: Decimal(8)}

    def test_cordon(self) -> None:
        taint = Taint(placement.CORDON_TAINT, "", "NoSchedule")
        closed = node(unschedulable=True, taints=(taint,))
        found = placement.fit(pod(), closed, [])
        assert found.cordoned
        assert (found.untolerated, found.condition_taints) == ((), ())
        assert not found.is_admitted
        tolerating = pod(tolerations=(Toleration(placement.CORDON_TAINT, "Exists"),))
        assert placement.fit(tolerating, closed, []).is_admitted
        assert not placement.fit(tolerating, node(), []).cordoned

    def test_taints_of_the_node_controller_are_apart(self) -> None:
        bad = Taint("node.kubernetes.io/not-ready", "", "NoExecute")
        own = Taint("team", "ml", "NoSchedule")
        found = placement.fit(pod(), node(taints=(bad, own)), [])
        assert found.condition_taints == (bad,)
        assert found.untolerated == (own,)


KEYS = st.sampled_from(["a", "b", "node.kubernetes.io/not-ready", placement.CORDON_TAINT])
VALUES = st.sampled_from(["", "1", "2"])
EFFECTS = st.sampled_from(["", "NoSchedule", "NoExecute", "PreferNoSchedule"])
TAINTS = st.lists(st.builds(Taint, KEYS, VALUES, EFFECTS), max_size=3).map(tuple)
TOLERATIONS = st.builds(
    Toleration, st.just("") | KEYS, st.sampled_from(["Equal", "Exists"]), VALUES, EFFECTS
)
LABELS = st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2)
PODS = st.builds(
    pod,
    st.integers(0, 10),
    tolerations=st.lists(TOLERATIONS, max_size=2).map(tuple),
    node_selector=LABELS,
)
NODES = st.builds(
    node, gpus=st.integers(0, 8), taints=TAINTS, unschedulable=st.booleans(), labels=LABELS
)


def hurdles(found: NodeFit) -> set[object]:
    return {
        found.cordoned and "cordon",
        *found.untolerated,
        *found.condition_taints,
        *found.unmatched,
        *(short.resource for short in found.shortages),
    }


@MODEST
@given(PODS, NODES, TOLERATIONS, st.integers(0, 4))
def test_a_toleration_more_never_makes_it_worse(
    wants: Pod, here: Node, more: Toleration, in_use: int
) -> None:
    before = placement.fit(wants, here, [occupant(in_use)])
    allowed = pod(
        int(wants.requests[GPU]),
        tolerations=(*wants.tolerations, more),
        node_selector=wants.node_selector,
    )
    after = placement.fit(allowed, here, [occupant(in_use)])
    assert hurdles(after) <= hurdles(before) | {False}


@MODEST
@given(PODS, NODES, st.integers(0, 8))
def test_the_wanted_label_never_makes_it_worse(wants: Pod, here: Node, in_use: int) -> None:
    before = placement.fit(wants, here, [occupant(in_use)])
    labelled = node(
        gpus=int(here.allocatable[GPU]),
        taints=here.taints,
        unschedulable=here.unschedulable,
        labels=here.labels | wants.node_selector,
    )
    after = placement.fit(wants, labelled, [occupant(in_use)])
    assert hurdles(after) <= hurdles(before)
    assert after.unmatched == ()


@MODEST
@given(PODS, NODES, st.lists(st.integers(0, 8), max_size=4), st.integers(0, 8))
def test_an_occupant_more_never_makes_it_better(
    wants: Pod, here: Node, in_use: list[int], more: int
) -> None:
    held = [occupant(n) for n in in_use]
    before = placement.fit(wants, here, held)
    after = placement.fit(wants, here, [*held, occupant(more)])
    assert hurdles(before) <= hurdles(after)
    assert before.free[GPU] - after.free[GPU] == more


@MODEST
@given(PODS, NODES)
def test_a_universal_toleration_lets_the_pod_in(wants: Pod, here: Node) -> None:
    free = pod(1, tolerations=(Toleration("", "Exists"),))
    assert placement.fit(free, here, []).is_admitted


def test_from_the_api() -> None:
    spec = {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}],
                            "matchFields": [
                                {"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}
                            ],
                        }
                    ]
                }
            }
        }
    }
    wants = parse.pod({"spec": spec})
    assert wants.node_affinity == (SelectorTerm((A,), (NAMED,)),)
    assert placement.unmatched(wants, node(labels={"a": "1"})) == ()
