"""The child of a round as a process: its reports, its replacement, a deadline, and what hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpudoctor.agent import bundle
from gpudoctor.agent.round import ROUNDS
from gpudoctor.agent.rounds import Order, Rounds
from gpudoctor.report import Report
from gpudoctor.sources import nvml_file
from gpudoctor.sources.child import Answer
from tests.hanging import mounted
from tests.kubernetes_objects import node
from tests.machines import on_disk, whole_machine

NODE = "gpu-0"
WAIT_SECONDS = 60.0
GPUS = "\n".join(
    msgspec.json.encode(line).decode()
    for line in (
        [None, "init", True],
        [None, "driver", "580.126.09"],
        [None, "count", 7],
        [0, "handle", {"code": 15, "why": "GPU is lost"}],
        [None, "complete", True],
    )
)


def objects(**of_node: object) -> bytes:
    raw = msgspec.Raw(msgspec.json.encode(node(NODE, **of_node)))  # type: ignore[arg-type]
    return bundle.of(raw, [], "2026-11-20T08:00:00Z")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "host"
    on_disk(whole_machine(), folder)
    return folder


@pytest.fixture
def rounds(root: Path) -> Iterator[Rounds]:
    made = Rounds(Order(node=NODE, host_root=str(root)))
    yield made
    made.close()


def child_of(rounds: Rounds) -> int:
    assert rounds._child is not None
    return rounds._child.pid


def reported(found: Report | str) -> Report:
    assert isinstance(found, Report), found
    return found


def test_a_round_reports_on_the_node(rounds: Rounds) -> None:
    report = reported(rounds.ask(objects()))
    assert (report.subject.kind, report.subject.name) == ("Node", NODE)
    assert "rdma-device-node-missing" in report.roots


def test_a_child_serves_some_rounds_and_is_then_another(rounds: Rounds) -> None:
    pids = []
    for _ in range(ROUNDS + 1):
        reported(rounds.ask(objects()))
        pids.append(rounds._child.pid if rounds._child else None)
    assert len(set(pids[: ROUNDS - 1])) == 1
    assert pids[ROUNDS - 1] is None
    assert pids[ROUNDS] not in (pids[0], None)


def test_a_child_that_was_killed_is_told_and_made_anew(rounds: Rounds) -> None:
    reported(rounds.ask(objects()))
    os.kill(child_of(rounds), signal.SIGKILL)
    assert rounds.ask(objects()) == "the process that looks at the node ended early"
    reported(rounds.ask(objects()))


def test_what_is_no_bundle_is_told_and_does_not_end_the_agent(rounds: Rounds) -> None:
    assert "bundle" in str(rounds.ask(b"[]"))
    reported(rounds.ask(objects()))


def test_a_child_that_stands_still_is_killed_at_its_deadline(root: Path) -> None:
    rounds = Rounds(Order(node=NODE, host_root=str(root)), deadline_s=WAIT_SECONDS)
    reported(rounds.ask(objects()))
    os.kill(child_of(rounds), signal.SIGSTOP)
    rounds._deadline_s = 0.5
    assert rounds.ask(objects()) == "looking at the node took more than 0.5 s"
    rounds._deadline_s = WAIT_SECONDS
    reported(rounds.ask(objects()))
    rounds.close()


def test_while_something_hangs_in_the_kernel_no_other_child_is_started(tmp_path: Path) -> None:
    with mounted(tmp_path, "/proc") as point:
        rounds = Rounds(Order(node=NODE, host_root=str(point)), deadline_s=3)
        assert "took more than" in str(rounds.ask(objects()))
        for _ in range(3):
            assert "hangs in the kernel" in str(rounds.ask(objects()))
            assert rounds._child is None
    # Its mount is gone, so what hung has ended.
    rounds._deadline_s = WAIT_SECONDS
    deadline = time.monotonic() + WAIT_SECONDS
    while "hangs" in str(rounds.ask(objects())):
        assert time.monotonic() < deadline
    rounds.close()


def test_a_hung_part_costs_its_bound_once_and_the_rest_is_told(tmp_path: Path) -> None:
    """The child outlives its rounds, since it alone knows what not to touch again."""
    with mounted(tmp_path, "/proc/driver") as point:
        rounds = Rounds(Order(node=NODE, host_root=str(point)))
        pids = set()
        for _ in range(ROUNDS + 2):
            report = reported(rounds.ask(objects()))
            pids.add(child_of(rounds))
        assert len(pids) == 1
        assert any("did not answer in time" in unknown.why for unknown in report.unknown)
        rounds.close()


def test_what_the_nvml_daemonset_wrote_is_read_with_the_rest(root: Path, rounds: Rounds) -> None:
    folder = Path(f"{root}{nvml_file.FOLDER}")
    folder.mkdir(parents=True)
    missing = [one for one in reported(rounds.ask(objects())).unknown if one.what == nvml_file.WHAT]
    assert "has the DaemonSet that asks NVML started" in missing[0].why
    nvml_file.write(folder, Answer(GPUS, True), 60)
    report = reported(rounds.ask(objects()))
    assert "gpu-lost" in {finding.name for finding in report.findings}
    assert "gpu-advertised-not-present" in {finding.name for finding in report.findings}
    nvml_file.write(folder, "an earlier call hangs and cannot be ended", 60)
    report = reported(rounds.ask(objects()))
    assert "an earlier call hangs and cannot be ended" in [one.why for one in report.unknown]


def test_where_the_nvml_daemonset_is_off_nothing_is_said_of_it(rounds: Rounds) -> None:
    assert nvml_file.WHAT not in {one.what for one in reported(rounds.ask(objects())).unknown}
