"""Multus annotations in each form, their results, and network definitions; garbage is none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import networks
from gpudoctor.facts.kubernetes.model import Meta
from gpudoctor.facts.kubernetes.networks import Attachment
from tests import kubernetes_objects as k8s

MODEST = settings(deadline=None, max_examples=60)
OLD_RESULT = "k8s.v1.cni.cncf.io/networks-status"


def pod(wanted: str | None = None, result: str | None = None, old: str | None = None) -> Meta:
    given = {networks.WANTED: wanted, networks.RESULT: result, OLD_RESULT: old}
    annotations = {key: value for key, value in given.items() if value is not None}
    return Meta("Pod", "p", "team", annotations=annotations)


@pytest.mark.parametrize(
    ("wanted", "attachments"),
    [
        (None, ()),
        ("", ()),
        ("  ", ()),
        ("roce", (("team", "roce"),)),
        ("net/roce", (("net", "roce"),)),
        ("net/roce@eth9", (("net", "roce"),)),
        ("a, net/b@x ,,c", (("team", "a"), ("net", "b"), ("team", "c"))),
        ('[{"name": "a"}, {"name": "b", "namespace": "net"}]', (("team", "a"), ("net", "b"))),
        ('{"name": "a"}', (("team", "a"),)),
        ('[{"namespace": "x"}, 7, null]', ()),
        ('[{"name": "a"', ()),
    ],
)
def test_wanted(wanted: str | None, attachments: tuple[tuple[str, str], ...]) -> None:
    assert networks.attachments(pod(wanted)) == tuple(Attachment(*pair) for pair in attachments)


def test_pod_without_namespace_is_in_default() -> None:
    bare = Meta("Pod", "p", annotations={networks.WANTED: "a"})
    assert networks.attachments(bare) == (Attachment("default", "a"),)


RESULT = json.dumps([{"name": "cni", "interface": "eth0"}, {"name": "team/a", "interface": "net1"}])


def test_results() -> None:
    assert networks.attachments(pod("a, b", RESULT)) == (
        Attachment("team", "a", "net1"),
        Attachment("team", "b", None),
    )
    assert networks.interfaces(pod(result=RESULT)) == {"eth0", "net1"}
    assert networks.interfaces(pod(old=RESULT)) == {"eth0", "net1"}
    assert networks.interfaces(pod()) == frozenset()
    assert networks.interfaces(pod(result='[{"name": "a"}]')) == frozenset()
    assert networks.attachments(pod("a", old=RESULT))[0].interface == "net1"


def definition(config: Any, **annotations: str) -> dict[str, Any]:
    written = config if isinstance(config, str) else json.dumps(config)
    return k8s.custom(
        "k8s.cni.cncf.io/v1",
        "NetworkAttachmentDefinition",
        "roce",
        "team",
        spec={"config": written},
        annotations=annotations,
    )


@pytest.mark.parametrize(
    ("config", "cni_type"),
    [
        ({"type": "sriov"}, "sriov"),
        ({"plugins": [{"type": "host-device"}, {"type": "tuning"}]}, "host-device"),
        ({"plugins": [{}, {"type": "tuning"}]}, "tuning"),
        ({"type": "macvlan", "plugins": [{"type": "tuning"}]}, "macvlan"),
        ({}, ""),
        ("{", ""),
        ("", ""),
    ],
)
def test_definitions(config: Any, cni_type: str) -> None:
    key = "k8s.v1.cni.cncf.io/resourceName"
    found = networks.definitions([definition(config, **{key: "example.com/vf"})])
    assert [(d.meta.short, d.cni_type, d.resource) for d in found] == [
        ("team/roce", cni_type, "example.com/vf")
    ]
    assert networks.definitions([definition(config)])[0].resource is None


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,6}[a-z0-9])?", fullmatch=True)


@MODEST
@given(st.lists(st.tuples(NAMES, NAMES, st.none() | NAMES), max_size=4))
def test_both_forms_say_the_same(wanted: list[tuple[str, str, str | None]]) -> None:
    short = ", ".join(f"{ns}/{name}" + (f"@{i}" if i else "") for ns, name, i in wanted)
    long = json.dumps([{"namespace": ns, "name": name} for ns, name, _ in wanted])
    expected = tuple(Attachment(ns, name) for ns, name, _ in wanted)
    assert networks.attachments(pod(short)) == networks.attachments(pod(long)) == expected


@MODEST
@given(st.text(max_size=60) | st.text(alphabet='[]{}",:/@ na', max_size=40))
def test_garbage(written: str) -> None:
    meta = pod(written, written)
    assert isinstance(networks.attachments(meta), tuple)
    assert isinstance(networks.interfaces(meta), frozenset)
    assert len(networks.definitions([definition(written)])) == 1
