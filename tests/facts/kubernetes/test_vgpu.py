"""Cards that nodes register for scheduler extenders, in every form, and refusals."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import parse, vgpu
from gpudoctor.facts.kubernetes.vgpu import Card
from tests import kubernetes_objects as k8s


def register(text: str, key: str = vgpu.HAMI_REGISTER) -> vgpu.CardNode | None:
    return vgpu.register(parse.node(k8s.node(annotations={key: text})))


def cards(text: str) -> tuple[Card, ...] | None:
    found = register(text)
    assert found is not None
    return found.cards


def test_json_form() -> None:
    item = {"id": "GPU-1", "count": 10, "devmem": 81559, "devcore": 100, "type": "H100"}
    assert cards(json.dumps([item | {"health": True}])) == (
        Card("GPU-1", 81559, 100, 10, "H100", True),
    )
    # HAMi leaves out what is false.
    assert cards(json.dumps([item])) == (Card("GPU-1", 81559, 100, 10, "H100", False),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("GPU-1,10,40960,100,A100,0,true:", Card("GPU-1", 40960, 100, 10, "A100", True)),
        ("GPU-1,10,40960,100,A100,0,false,3,mig:", Card("GPU-1", 40960, 100, 10, "A100", False)),
        ("GPU-1,10,40960,A100,true,hami-core:", Card("GPU-1", 40960, 100, 10, "A100", True)),
    ],
)
def test_colon_forms(text: str, expected: Card) -> None:
    assert cards(text) == (expected,)


@pytest.mark.parametrize("text", ["[", "[1", "GPU-1,10", "a,b,c,d,e,f,g:"])
def test_unreadable_register(text: str) -> None:
    assert cards(text) is None


def test_empty_registers_are_no_cards() -> None:
    assert cards("[]") == ()
    assert cards("[null]") == ()
    assert cards("") == ()
    assert register("x", "other/annotation") is None


def test_slices_of_a_pod() -> None:
    pod = parse.pod(
        k8s.pod(
            containers=[
                k8s.container("plain"),
                k8s.container("cut", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "4k"}),
            ]
        )
    )
    (found,) = vgpu.slices(pod)
    assert (found.container, found.cards, found.memory) == ("cut", 2, 4000)
    assert found.field == "spec.containers[1].resources.limits"
    assert found.written == "nvidia.com/gpu 2, nvidia.com/gpumem 4000 (MiB)"


def test_refusals_fall_back_to_the_schedulers_text() -> None:
    (found,) = vgpu.refusals([], "0/2 nodes are available: 2 CardInsufficientMemory.")
    assert (found.code, found.count, found.nodes, found.event) == (
        "CardInsufficientMemory",
        2,
        (),
        None,
    )


@settings(deadline=None, max_examples=150)
@given(
    st.text(max_size=200)
    | st.lists(
        st.sampled_from(
            ["[", "]", "{", "}", '"id":', ",", ":", "GPU-1", "10", "true", "1e9", "\x00"]
        ),
        max_size=40,
    ).map("".join)
)
def test_any_annotation_is_taken(text: str) -> None:
    found = cards(text)
    assert found is None or all(isinstance(card, Card) for card in found)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=200), st.text(max_size=200))
def test_any_event_is_taken(message: str, said: str) -> None:
    event = parse.event(k8s.event(k8s.pod(), "FilteringFailed", message))
    vgpu.refusals([event], said)
    vgpu.says_unregistered(message)
