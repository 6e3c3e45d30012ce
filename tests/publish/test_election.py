"""Leader election as a value: clocks are never compared, and each write has its condition."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import election, names
from gpudoctor.publish.election import DURATION, RENEW_DEADLINE, Candidate, Held

CLOCK = datetime(2026, 11, 29, 19, 0, tzinfo=UTC)


def candidate(name: str = "one") -> Candidate:
    return Candidate(name, "gpudoctor")


def held(by: str, renewed: str = "t1", version: str = "7") -> Held:
    return Held(version=version, holder=by, renewed=renewed)


def test_a_lease_that_nobody_holds_is_taken_at_once() -> None:
    one = candidate()
    one.saw(None, 0.0)
    assert one.may_write(0.0)
    write = one.write(CLOCK, None)
    assert (write.method, write.path) == (
        "POST",
        "/apis/coordination.k8s.io/v1/namespaces/gpudoctor/leases",
    )
    body = json.loads(write.body)
    assert body["metadata"]["name"] == names.LEADER_LEASE
    assert body["spec"]["holderIdentity"] == "one"
    one.saw(held(""), 0.0)
    assert one.may_write(0.0)


def test_anothers_lease_is_taken_only_after_it_stood_still_for_its_duration() -> None:
    one = candidate()
    one.saw(held("two"), 100.0)
    assert not one.may_write(100.0 + DURATION - 1)
    one.saw(held("two", version="8"), 120.0)
    assert one.may_write(100.0 + DURATION), "a change that is no renewal does not count"
    one.saw(held("two", renewed="t2"), 129.0)
    assert not one.may_write(129.0 + DURATION - 1)
    assert one.may_write(129.0 + DURATION)


@settings(deadline=None)
@given(skew=st.timedeltas(timedelta(days=-900), timedelta(days=900)), wait=st.floats(0, 1e6))
def test_the_clocks_of_candidates_do_not_matter(skew: timedelta, wait: float) -> None:
    theirs = (CLOCK + skew).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    one = candidate()
    one.saw(held("two", renewed=theirs), 0.0)
    assert one.may_write(wait) == (wait >= DURATION)


def test_a_write_is_refused_if_the_lease_changed_since_it_was_read() -> None:
    one = candidate()
    one.saw(held("two", version="41"), 0.0)
    body = json.loads(one.write(CLOCK, None).body)
    assert body["metadata"]["resourceVersion"] == "41"
    assert body["spec"]["leaseTransitions"] == 1
    assert body["metadata"]["annotations"] == {"gpudoctor.io/brake": None}


def test_a_renewal_keeps_since_when_it_leads_and_carries_the_brake() -> None:
    one = candidate()
    one.renewed(held("one"), 0.0)
    body = json.loads(one.write(CLOCK, "on").body)
    assert "acquireTime" not in body["spec"]
    assert body["metadata"]["annotations"] == {"gpudoctor.io/brake": "on"}


def test_a_leader_that_cannot_renew_steps_down_before_another_may_take_over() -> None:
    one, two = candidate("one"), candidate("two")
    one.renewed(held("one", renewed="t1"), asked_at := 50.0)
    two.saw(held("one", renewed="t1"), asked_at)
    last = asked_at + RENEW_DEADLINE
    assert one.leads(last - 0.1)
    assert not one.leads(last)
    assert not two.may_write(last)
    assert two.may_write(asked_at + DURATION)


def test_a_leader_that_sees_another_holder_steps_down_at_once() -> None:
    one = candidate()
    one.renewed(held("one"), 0.0)
    one.saw(held("two"), 1.0)
    assert not one.leads(1.0)
    assert one.release(CLOCK) is None


def test_a_released_lease_is_nobodys() -> None:
    one = candidate()
    one.renewed(held("one", version="9"), 0.0)
    write = one.release(CLOCK)
    assert write is not None
    body = json.loads(write.body)
    assert body["metadata"]["resourceVersion"] == "9"
    assert body["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize(
    ("lease", "expected"),
    [
        ({}, Held(version="")),
        ({"spec": {"holderIdentity": None, "leaseDurationSeconds": None}}, Held(version="")),
        (
            {
                "metadata": {"resourceVersion": "5", "annotations": {names.BRAKE: "since"}},
                "spec": {"holderIdentity": "a", "renewTime": "t", "leaseDurationSeconds": 15},
            },
            Held(version="5", holder="a", renewed="t", duration=15.0, brake="since"),
        ),
    ],
)
def test_a_lease_as_anyone_may_have_written_it(lease: object, expected: Held) -> None:
    assert election.read(json.dumps(lease).encode()) == expected


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_what_is_no_lease_is_said_to_be_none(garbage: bytes) -> None:
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
        election.read(garbage)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["one", "two", "three"]),
        st.floats(0.0, 20.0),
        st.sampled_from(["ok", "lost", "unseen"]),
    ),
    max_size=60,
)


@settings(deadline=None)
@given(STEPS)
def test_never_do_two_lead_at_once(steps: list[tuple[str, float, str]]) -> None:
    """Whoever comes, late or early, and whether the server's answers are lost or not."""
    candidates = {name: candidate(name) for name in ("one", "two", "three")}
    lease: Held | None = None
    version, now = 0, 0.0
    for name, step, fate in steps:
        now += step
        one = candidates[name]
        if fate == "unseen":
            continue
        if not one.leads(now):
            one.saw(lease, now)
        if not one.may_write(now):
            continue
        body = json.loads(one.write(CLOCK, None).body)
        if body["metadata"].get("resourceVersion", "") != (lease.version if lease else ""):
            one.saw(lease, now)
            continue
        version += 1
        lease = held(name, renewed=f"t{version}", version=str(version))
        if fate == "ok":
            one.renewed(lease, now)
        assert sum(other.leads(now) for other in candidates.values()) <= 1
