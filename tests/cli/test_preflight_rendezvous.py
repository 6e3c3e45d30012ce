"""`gpudoctor preflight --rendezvous` as eight processes in eight real network namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.preflight import Exit
from tests import namespaces, nvml_library
from tests.namespaces import Pods

MEMBERS = 8
TIMEOUT = 10
PLENTY_S = 90.0
TOKEN = "0123456789abcdef0123456789abcdef"


class Member:
    """One init container, whose log can be waited on."""

    def __init__(self, pods: Pods, rank: int, folder: Path, **environment: str) -> None:
        self.rank = rank
        self._log = folder / f"termination-{rank}"
        self._lines: list[str] = []
        self._said = threading.Condition()
        self._ended: tuple[int, dict[str, Any]] | None = None
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [*pods.command(rank), sys.executable, "-m", "gpudoctor", "preflight", "-o", "json",
             "--require", "shm=4Ki", "--termination-log", str(self._log), "--rendezvous"],
            env=inherited | {
                "GPUDOCTOR_TOKEN": TOKEN,
                "GPUDOCTOR_RENDEZVOUS": f"members={MEMBERS},timeout={TIMEOUT}",
                "JOB_COMPLETION_INDEX": str(rank),
                "MASTER_ADDR": pods.address(0),
                "NODE_NAME": f"gpu-{rank}",
                "LD_LIBRARY_PATH": str(folder / "580"),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._said:
                self._lines.append(line)
                self._said.notify_all()
        with self._said:
            self._lines.append("(ended)")
            self._said.notify_all()

    def wait_for(self, words: str) -> None:
        """Wait until it said so in its log."""
        with self._said:
            heard = self._said.wait_for(
                lambda: any(words in line for line in self._lines), PLENTY_S
            )
        assert heard, self._lines

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end; return exit status and report."""
        if self._ended is None:
            with self._process as process:
                assert process.stdout is not None
                printed = process.stdout.read()
                status = process.wait(PLENTY_S)
                self._listener.join()
            self._ended = status, json.loads(printed) if printed else {}
        return self._ended

    @property
    def message(self) -> str:
        return self._log.read_text(encoding="utf-8")


class Job:
    """The members of one job; whichever a failed test leaves behind is ended."""

    def __init__(self, pods: Pods, folder: Path) -> None:
        self._pods, self._folder = pods, folder
        self._members: list[Member] = []

    def start(self, rank: int, **environment: str) -> Member:
        member = Member(self._pods, rank, self._folder, **environment)
        self._members.append(member)
        return member

    def start_all(self, own: dict[int, dict[str, str]] | None = None) -> list[Member]:
        return [self.start(rank, **(own or {}).get(rank, {})) for rank in range(MEMBERS)]

    def close(self) -> None:
        for member in self._members:
            member.kill()
            member.end()


@pytest.fixture
def job(pods: Pods, folder: Path) -> Iterator[Job]:
    made = Job(pods, folder)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pods() -> Iterator[Pods]:
    with namespaces.pods(MEMBERS) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, driver in (("580", "580.126.09"), ("570", "570.172.08")):
        (tmp_path / name).mkdir()
        nvml_library.build(tmp_path / name, f"gpus=2;driver={driver}")
    return tmp_path


def found(report: dict[str, Any]) -> set[tuple[str, str]]:
    """Names of findings, each with the member that it is about."""
    return {(one["name"], one["title"]) for one in report["findings"]}


def test_all_eight_meet(job: Job) -> None:
    members = job.start_all()
    ended = [member.end() for member in members]
    assert [status for status, _ in ended] == [Exit.PASSED] * MEMBERS
    for _, report in ended:
        met = report["facts"]["preflight"]["rendezvous"]["members"]
        assert [one["said"]["node"] for one in met] == [f"gpu-{rank}" for rank in range(MEMBERS)]
        assert {one["said"]["driver"] for one in met} == {"580.126.09"}
        assert {one["said"]["mtu"] for one in met} == {1500}
        assert all(one["unreachable"] == {} for one in met)
        assert report["findings"] == []
    assert TOKEN not in json.dumps([report for _, report in ended])


def test_odd_late_dead_and_wrong_token_are_named(job: Job, pods: Pods, folder: Path) -> None:
    odd, late, dead, stranger = 4, 5, 6, 7
    began = time.monotonic()
    own = {
        odd: {"LD_LIBRARY_PATH": str(folder / "570")},
        stranger: {"GPUDOCTOR_TOKEN": TOKEN.replace("0", "1")},
    }
    pods.ip(late, "link", "set", "eth0", "down")
    members = job.start_all(own)
    members[dead].wait_for("waiting for the others")
    members[dead].kill()
    status, report = members[stranger].end()
    assert (status, report["roots"]) == (Exit.PEER, ["rendezvous-token-mismatch"])
    members[0].wait_for("s of grace")
    pods.ip(late, "link", "set", "eth0", "up")
    ended = {rank: members[rank].end() for rank in (0, 1, 2, 3, odd, late)}
    assert time.monotonic() - began < PLENTY_S
    for rank, (status, report) in ended.items():
        assert status == Exit.PEER, report
        titles = dict(sorted(found(report)))
        assert "member 5 " in titles["rendezvous-member-late"]
        assert "member 6 " in titles["rendezvous-member-missing"]
        assert "member 7 " in titles["rendezvous-token-mismatch"]
        assert titles["rendezvous-member-differs"].startswith("Member 4 ")
        assert len(report["findings"]) == 4
        message = members[rank].message
        assert message.startswith("gpudoctor preflight: peer: NET01")
        assert all(f"member {one} " in message.lower() for one in (odd, late, dead, stranger))


def test_a_pair_that_cannot_connect(job: Job, pods: Pods) -> None:
    """Packets of member 2 to member 5 go nowhere; all others get through, and both reach 0."""
    nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
    pods.ip(2, "neigh", "add", pods.address(5), *nowhere)
    members = job.start_all()
    for member in members:
        status, report = member.end()
        assert (status, report["roots"]) == (Exit.PEER, ["rendezvous-peer-unreachable"])
        # What 2 sends to 5 is lost, its answers included: neither direction connects, one pair.
        [one] = report["findings"]
        assert one["title"].startswith("The job's member 5 ")
        assert one["title"].endswith(" and member 2 cannot connect")
        assert "ETIMEDOUT" in one["detail"]
        assert len(one["evidence"]) == 2


def test_an_interface_of_another_mtu(job: Job, pods: Pods) -> None:
    pods.ip(3, "link", "set", "eth0", "mtu", "1400")
    members = job.start_all()
    for member in members:
        status, report = member.end()
        assert (status, report["roots"]) == (Exit.PASSED, ["rendezvous-member-differs"])
        assert "interface MTU" in report["findings"][0]["title"]
        assert "1400" in member.message


def test_a_member_that_fails_by_itself_says_so(job: Job) -> None:
    members = job.start_all({3: {"GPUDOCTOR_REQUIRE": "shm=4Ki,gpus=8"}})
    status, report = members[3].end()
    assert (status, report["roots"]) == (Exit.NODE, ["gpu-count-wrong"]) or (status == Exit.REQUEST)
    for rank in (0, 1, 7):
        status, report = members[rank].end()
        assert (status, report["roots"]) == (Exit.PEER, ["rendezvous-member-missing"])
        assert "failed its own preflight: TOP025 gpu-count-wrong" in members[rank].message
    for rank in (2, 4, 5, 6):
        members[rank].end()


def test_nobody_is_at_the_address(job: Job, pods: Pods) -> None:
    member = job.start(1, GPUDOCTOR_RENDEZVOUS=f"members={MEMBERS},timeout=1")
    status, report = member.end()
    assert (status, report["roots"]) == (Exit.PEER, ["rendezvous-not-reached"])
    assert f"{pods.address(0)}:29499" in member.message
