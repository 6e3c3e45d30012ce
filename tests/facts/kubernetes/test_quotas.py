"""ResourceQuotas and the API server's words about them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import quotas
from gpudoctor.facts.kubernetes.quotas import QuotaRefusal
from tests import kubernetes_objects as k8s

MODEST = settings(deadline=None, max_examples=60)


def quota(namespace: str = "team", *, spec: bool = False, **amounts: dict[str, str]) -> k8s.Object:
    where = {"spec": amounts} if spec else {"status": amounts}
    return k8s.custom("v1", "ResourceQuota", "q", namespace, **where)


def test_of_one_namespace() -> None:
    found = quotas.read([quota(hard={"pods": "3"}), quota("other", hard={"pods": "4"})], "team")
    assert [(q.meta.namespace, q.hard) for q in found] == [("team", {"pods": Decimal(3)})]


def test_spec_stands_in_for_a_status_that_is_not_there_yet() -> None:
    found = quotas.read([quota(spec=True, hard={"pods": "3"})], "team")[0]
    assert found.hard == {"pods": Decimal(3)}
    assert found.used == {}


@pytest.mark.parametrize(
    ("hard", "used", "free"),
    [
        ({"requests.nvidia.com/gpu": "8"}, {"requests.nvidia.com/gpu": "6"}, 2),
        ({"limits.nvidia.com/gpu": "8"}, {}, 8),
        ({"nvidia.com/gpu": "8"}, {"nvidia.com/gpu": "8"}, 0),
        (
            {"requests.nvidia.com/gpu": "8", "limits.nvidia.com/gpu": "4"},
            {"requests.nvidia.com/gpu": "1", "limits.nvidia.com/gpu": "1"},
            3,
        ),
        ({"cpu": "8"}, {}, None),
    ],
)
def test_what_is_left(hard: dict[str, str], used: dict[str, str], free: int | None) -> None:
    found = quotas.read([quota(hard=hard, used=used)], "team")[0]
    assert found.free("nvidia.com/gpu") == free


def test_refusal() -> None:
    found = quotas.refusal(
        'pods "a" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2,cpu=1, '
        "used: requests.nvidia.com/gpu=8,cpu=4, limited: requests.nvidia.com/gpu=8,cpu=4\n"
    )
    assert found == QuotaRefusal(
        "gpus",
        "requests.nvidia.com/gpu=2,cpu=1",
        "requests.nvidia.com/gpu=8,cpu=4",
        "requests.nvidia.com/gpu=8,cpu=4",
    )
    assert found.resource == "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("requested", "resource"),
    [("limits.memory=1Gi", "memory"), ("pods=1", "pods"), ("cpu=1,pods=1", "cpu")],
)
def test_first_resource(requested: str, resource: str) -> None:
    assert QuotaRefusal("q", requested, "", "").resource == resource


@pytest.mark.parametrize(
    "message", ["", "exceeded quota: gpus", "exceeded quota: gpus, requested: a=1, used: a=1"]
)
def test_other_words(message: str) -> None:
    assert quotas.refusal(message) is None


AMOUNTS = st.lists(
    st.tuples(
        st.from_regex(r"[a-z]{1,6}(\.[a-z]{1,6})?(/[a-z]{1,4})?", fullmatch=True),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=3,
).map(lambda pairs: ",".join(f"{key}={amount}" for key, amount in pairs))


@MODEST
@given(AMOUNTS, AMOUNTS, AMOUNTS, st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True))
def test_round_trip(requested: str, used: str, limited: str, name: str) -> None:
    message = f"exceeded quota: {name}, requested: {requested}, used: {used}, limited: {limited}"
    assert quotas.refusal(f"forbidden: {message}") == QuotaRefusal(name, requested, used, limited)


@MODEST
@given(st.text(max_size=80))
def test_garbage(message: str) -> None:
    quotas.refusal(message)
    quotas.refusal(f"exceeded quota: {message}, requested: {message}")
