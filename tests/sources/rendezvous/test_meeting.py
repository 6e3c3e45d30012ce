"""The rendezvous in one process: members as threads over loopback."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpudoctor.sources import rendezvous
from gpudoctor.sources.rendezvous import Outcome, Plan, meeting, probe, wire
from gpudoctor.sources.rendezvous.probe import Peer
from tests.cluster.control_plane import free_ports

KEY = wire.key_of(b"0123456789abcdef")
PLENTY = 60.0


@pytest.fixture
def port() -> int:
    return free_ports(1)[0]


def plan(port: int, rank: int, members: int, **changes: Any) -> Plan:
    common: dict[str, Any] = {"host": "127.0.0.1", "key": KEY, "port": port, "timeout": PLENTY}
    return Plan(rank=rank, members=members, **(common | changes))


def meet(plans: Iterable[Plan]) -> list[Outcome]:
    listed = list(plans)
    with ThreadPoolExecutor(len(listed)) as pool:
        tasks = [
            pool.submit(meeting.meet, one, {"pod": f"pod-{one.rank}"}, lambda _words: None)
            for one in listed
        ]
        return [task.result(PLENTY) for task in tasks]


def test_all_have_the_same_minutes(port: int) -> None:
    first, *others = meet(plan(port, rank, 5) for rank in range(5))
    assert first.minutes is not None
    assert [entry.report for entry in first.minutes.entries] == [
        {"pod": f"pod-{rank}"} for rank in range(5)
    ]
    assert all(entry.unreachable == {} for entry in first.minutes.entries)
    assert all(one.minutes == first.minutes for one in others)


def test_forty_members(port: int) -> None:
    for outcome in meet(plan(port, rank, 40) for rank in range(40)):
        assert outcome.minutes is not None
        assert [entry.rank for entry in outcome.minutes.entries] == list(range(40))
        assert all(entry.unreachable == {} for entry in outcome.minutes.entries)


def test_another_number_of_members_is_turned_away_at_once(port: int) -> None:
    *_, odd = outcomes = meet(
        [*(plan(port, rank, 3, timeout=1.0) for rank in (0, 1)), plan(port, 2, 4)]
    )
    assert (odd.failed, odd.why) == (rendezvous.TURNED_AWAY, rendezvous.OTHER_SIZE)
    minutes = outcomes[0].minutes
    assert minutes is not None
    assert [(one.claims, one.why) for one in minutes.refused] == [(2, rendezvous.OTHER_SIZE)]


def test_two_with_one_rank(port: int) -> None:
    """Whoever comes second is let in only if the first one goes, which it does not."""
    plans = [plan(port, rank, 3, timeout=1.0) for rank in (0, 1, 1)]
    outcomes = meet(plans)
    failed = [one for one in outcomes[1:] if one.failed]
    assert [one.failed for one in failed] in (
        [rendezvous.TURNED_AWAY], [rendezvous.UNREACHED],  # asked again after the end
    )  # fmt: skip
    minutes = outcomes[0].minutes
    assert minutes is not None
    assert minutes.refused[0].why == rendezvous.RANK_TAKEN
    assert minutes.entries[2].came is None


def test_a_member_that_leaves_is_noted_and_may_be_replaced(port: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        hub = pool.submit(meeting.meet, plan(port, 0, 2), {}, lambda _words: None)
        own = plan(port, 1, 2)
        pool.submit(meeting.stay_away, own, {"pod": "a"}, "TOP025", lambda _words: None).result()
        again = pool.submit(meeting.meet, own, {"pod": "b"}, lambda _words: None)
        minutes = hub.result(PLENTY).minutes
        assert again.result(PLENTY).minutes == minutes
    assert minutes is not None
    assert (minutes.entries[1].report, minutes.entries[1].note) == ({"pod": "b"}, "")


def test_a_member_that_only_left(port: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        hub = pool.submit(meeting.meet, plan(port, 0, 2, timeout=1.0), {}, lambda _words: None)
        leaving = plan(port, 1, 2)
        meeting.stay_away(leaving, {"pod": "a"}, "TOP025 gpu-count-wrong", lambda _words: None)
        minutes = hub.result(PLENTY).minutes
    assert minutes is not None
    assert minutes.entries[1].note == "TOP025 gpu-count-wrong"


def test_a_taken_port_is_said(port: int) -> None:
    outcomes = meet([plan(port, 0, 2, timeout=1.0), plan(port, 0, 2, timeout=1.0)])
    assert {one.failed for one in outcomes} == {"", rendezvous.NO_PORT}


def test_nobody_there_and_no_such_name(port: int) -> None:
    alone = meeting.meet(plan(port, 1, 2, timeout=0.1), {}, lambda _words: None)
    assert (alone.failed, alone.why) == (rendezvous.UNREACHED, "ECONNREFUSED")
    nowhere = plan(port, 1, 2, timeout=0.1, host="no-such-name.invalid")
    assert meeting.meet(nowhere, {}, lambda _words: None).failed == rendezvous.UNRESOLVED


def test_whom_a_member_tries() -> None:
    few = [Peer(rank, "127.0.0.1", 1) for rank in range(1, 8)]
    assert [peer.rank for peer in probe.peers_of(3, few)] == [1, 2, 4, 5, 6, 7]
    many = [Peer(rank, "127.0.0.1", 1) for rank in range(1, 1024)]
    tried = [peer.rank for peer in probe.peers_of(900, many)]
    assert len(tried) == len(set(tried)) == probe.MOST_PEERS
    assert tried[0] == 901
    assert 900 not in tried
    assert 0 not in tried


def test_a_plan_does_not_show_its_key(port: int) -> None:
    assert KEY.hex() not in repr(plan(port, 0, 2))
    assert repr(KEY) not in repr(plan(port, 0, 2))
