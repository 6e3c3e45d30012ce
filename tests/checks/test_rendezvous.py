"""What is said of members that met, and near misses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpudoctor.diagnosis import Diagnosis, diagnose
from gpudoctor.facts.rendezvous import Member, OrderedStart, Rendezvous, Statement
from gpudoctor.registry import Registry
from gpudoctor.report import Blame, Evidence, Severity, Subject
from gpudoctor.sources import rendezvous as wire
from gpudoctor.sources.rendezvous import Plan, Refused
from gpudoctor_checks.rendezvous import CHECKS

SUBJECT = Subject("Container", "train-0")
PLAN = Plan(rank=0, members=4, host="train-0.train", key=b"k", timeout=300)


def said(rank: int, **changes: Any) -> Statement:
    alike: dict[str, Any] = {
        "pod": f"train-{rank}", "node": f"gpu-{rank}", "driver": "580.126.09", "nccl": "2.26.2",
        "gpus": 8, "gpu": "H100", "network": "roce", "hcas": 8, "rate": 400.0,
        "gid": "RoCE v2 IPv4", "mtu": 1500, "rdma_mtu": 9000,
    }  # fmt: skip
    return Statement(**(alike | changes))


def members(**of: Member) -> tuple[Member, ...]:
    """Members about whom nothing is to be said, but for those given as r0, r1, …"""
    return tuple(
        of.get(f"r{rank}")
        or Member(rank=rank, said=said(rank), address=f"10.0.0.{rank}", came=1.0, unreachable={})
        for rank in range(4)
    )


def member(rank: int, unreachable: dict[int, str] | None = None, **changes: Any) -> Member:
    return Member(
        rank=rank, said=said(rank, **changes), address=f"10.0.0.{rank}", came=1.0,
        unreachable=unreachable or {},
    )  # fmt: skip


def judge(found: tuple[Member, ...] = (), *refused: Refused, **more: Any) -> Diagnosis:
    met = Rendezvous(
        subject=SUBJECT,
        plan=msgspec.structs.replace(PLAN, members=len(found) or 4),
        members=found,
        refused=refused,
        **more,
    )
    return diagnose(Registry([CHECKS]), [met])


def names(result: Diagnosis) -> list[tuple[str, str]]:
    return [(one.name, one.severity.value) for one in result.findings]


def test_all_alike() -> None:
    assert judge(members()).findings == ()


def test_what_is_not_known_is_not_different() -> None:
    blind = member(2, driver=None, nccl=None, gpus=None, network=None, gid=None, mtu=None)
    assert judge(members(r2=blind)).findings == ()


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"nccl": "2.27.3"}, "error"),
        ({"network": "ib"}, "error"),
        ({"gid": "IB/RoCE v1 IPv4"}, "error"),
        ({"gpus": 4}, "error"),
        ({"driver": "570.172.08"}, "warning"),
        ({"gpu": "H200"}, "warning"),
        ({"hcas": 4}, "warning"),
        ({"rate": 200.0}, "warning"),
        ({"mtu": 9000}, "warning"),
        ({"rdma_mtu": 1500}, "warning"),
    ],
)
def test_the_odd_one_is_named(changes: dict[str, Any], severity: str) -> None:
    [one] = judge(members(r2=member(2, **changes))).findings
    assert (one.name, one.severity) == ("rendezvous-member-differs", severity)
    assert one.title.startswith("Member 2 (train-2 on gpu-2) differs")
    [value] = changes.values()
    assert str(value) in one.detail
    assert one.blame is Blame.FABRIC


def test_two_groups_of_one_size_have_no_odd_one() -> None:
    two = (member(0, driver="580"), member(1, driver="570"))
    [one] = judge(two).findings
    assert one.title.startswith("The job differs")
    assert "580: member 0" in one.detail
    assert "570: member 1" in one.detail


def test_two_differences_of_one_member_are_two_findings() -> None:
    result = judge(members(r1=member(1, driver="570", rate=200.0)))
    assert names(result) == [("rendezvous-member-differs", "warning")] * 2


def test_missing_members() -> None:
    gone = Member(rank=1, said=said(1), came=2.0, note="went away again")
    failed = Member(rank=2, said=said(2), came=1.0, note="failed its own preflight: TOP025 x")
    result = judge(members(r1=gone, r2=failed, r3=Member(rank=3)))
    assert names(result) == [("rendezvous-member-missing", "error")] * 3
    details = " ".join(one.detail for one in result.findings)
    assert "1 of 4 members met within 300 s; member 3 never came." in details
    assert "came after 2 s and went away again" in details
    assert "failed its own preflight: TOP025 x" in details


def test_a_late_one_is_a_warning() -> None:
    late = msgspec.structs.replace(member(3), late=True, came=304.0)
    [one] = judge(members(r3=late)).findings
    assert (one.name, one.severity) == ("rendezvous-member-late", Severity.WARNING)
    assert "came 304 s after member 0" in one.detail


def test_another_token_in_place_of_a_member() -> None:
    stranger = Refused("10.0.0.9", 3, wire.OTHER_TOKEN)
    [one] = judge(members(r3=Member(rank=3)), stranger).findings
    assert one.name == "rendezvous-token-mismatch"
    assert "10.0.0.9 says that it is member 3" in one.detail


@pytest.mark.parametrize("claims", [3, 0, 17, -1])
def test_a_stranger_cannot_fail_a_job_that_is_there(claims: int) -> None:
    assert judge(members(), Refused("10.0.0.9", claims, wire.OTHER_TOKEN)).findings == ()


def test_where_most_have_another_token_it_is_member_0() -> None:
    absent = {f"r{rank}": Member(rank=rank) for rank in (1, 2, 3)}
    others = [Refused(f"10.0.0.{rank}", rank, wire.OTHER_TOKEN) for rank in (1, 2, 3)]
    [one] = judge(members(**absent), *others).findings
    assert one.title.startswith("The job's member 0 ")
    assert "Members 1, 2, 3, 3 of 4, have another token" in one.detail


def test_a_rank_twice() -> None:
    [one] = judge(members(), Refused("10.0.0.9", 3, wire.RANK_TAKEN)).findings
    assert one.name == "rendezvous-member-refused"


def test_pairs_that_cannot_connect_are_told_of_the_member_that_has_most() -> None:
    cut_off = member(2, unreachable={1: "ETIMEDOUT", 3: "ETIMEDOUT"})
    one_way = member(3, unreachable={2: "ECONNREFUSED"})
    [one] = judge(members(r2=cut_off, r3=one_way)).findings
    assert one.title == "The job's member 2 (train-2 on gpu-2) and members 1, 3 cannot connect"
    assert "ECONNREFUSED, ETIMEDOUT" in one.detail
    assert len(one.evidence) == 3


def test_a_member_that_is_missing_is_not_unreachable_as_well() -> None:
    gone = Member(rank=2, said=said(2), came=2.0, note="stopped answering")
    result = judge(members(r1=member(1, unreachable={2: "ECONNREFUSED"}), r2=gone))
    assert names(result) == [("rendezvous-member-missing", "error")]


def test_a_statement_that_cannot_be_read_is_unknown() -> None:
    result = judge(members(r2=Member(rank=2, came=1.0)))
    assert result.findings == ()
    assert result.needed_unknown


@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        (wire.TOKEN, "rendezvous-token-mismatch"),
        (wire.UNRESOLVED, "master-address-unresolved"),
        (wire.UNREACHED, "rendezvous-not-reached"),
        (wire.TURNED_AWAY, "rendezvous-member-refused"),
    ],
)
def test_no_minutes(failed: str, expected: str) -> None:
    [one] = judge(failed=failed, why=wire.RANK_TAKEN).findings
    assert (one.name, one.blame) == (expected, Blame.FABRIC)


def test_no_port_to_listen_on_is_unknown() -> None:
    result = judge(failed=wire.NO_PORT, why="cannot listen on port 29499: Address already in use")
    assert result.findings == ()
    assert result.needed_unknown


def test_an_ordered_start_is_the_requests() -> None:
    evidence = (Evidence("labels", "statefulset.kubernetes.io/pod-name", "t-0"),)
    start = OrderedStart(subject=SUBJECT, what="a StatefulSet", evidence=evidence)
    [one] = diagnose(Registry([CHECKS]), [start]).findings
    assert (one.name, one.blame) == ("rendezvous-start-ordered", Blame.REQUEST)
