"""When a round asks the kubelet again: new containers, an error, a new child; else it need not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpudoctor.agent.round import Kubelet
from gpudoctor.sources import pod_resources

ONE = b'{"containerID":"containerd://1"}'
TWO = b'{"containerID":"containerd://1"},{"containerID":"containerd://2"}'


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the kubelet answers next; each asking takes one."""
    given: list[str] = []
    monkeypatch.setattr(pod_resources, "read_pod_resources", lambda _seconds, _root: given.pop(0))
    yield given
    assert given == [], "it was not asked as often as it should be"


def asked(kubelet: Kubelet, objects: bytes) -> str:
    kubelet.knows(objects)
    return kubelet.ask(5.0, "/host")


def test_the_same_containers_have_what_they_were_given(answers: list[str]) -> None:
    answers.append("first")
    kubelet = Kubelet()
    assert [asked(kubelet, ONE) for _ in range(5)] == ["first"] * 5


def test_another_container_wants_another_answer(answers: list[str]) -> None:
    answers += ["first", "second", "third"]
    kubelet = Kubelet()
    assert [asked(kubelet, objects) for objects in (ONE, TWO, TWO, ONE)] == [
        "first", "second", "second", "third",
    ]  # fmt: skip


def test_an_error_is_not_kept(answers: list[str]) -> None:
    answers += ['{"error": {"code": "UNAVAILABLE", "details": ""}}', "", "well"]
    kubelet = Kubelet()
    assert [asked(kubelet, ONE) for _ in range(4)][2:] == ["well", "well"]
