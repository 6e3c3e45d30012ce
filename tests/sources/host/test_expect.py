"""Files that are read in one go: the same answers, fewer requests, a hang costs its bound once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.sources import host
from gpudoctor.sources.host import TIMED_OUT, Listing, Missing
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.host.recorder import Recorder
from tests.hanging import mounted


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    for pid in range(3000):
        (folder / str(pid)).mkdir(parents=True)
        (folder / str(pid) / "cgroup").write_bytes(b"0::/kubepods/%d\xff\n" % pid)
    return tmp_path


def paths(count: int) -> list[str]:
    return [f"/proc/{pid}/cgroup" for pid in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_expected_files_are_answered_as_they_would_be_alone(root: Path, count: int) -> None:
    with LiveHost(str(root)) as live:
        live.expect(paths(count))
        for pid, path in enumerate(paths(count)):
            assert live.read_bytes(path) == b"0::/kubepods/%d\xff\n" % pid


def test_they_cost_one_request(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    ask = LiveHost._ask

    def noted(self: LiveHost, *words: Any) -> Any:
        asked.append(words)
        return ask(self, *words)

    monkeypatch.setattr(LiveHost, "_ask", noted)
    with LiveHost(str(root)) as live:
        live.expect(paths(100))
        assert all(isinstance(live.read_bytes(path), bytes) for path in paths(100))
        assert asked == []
        live.read_bytes(paths(1)[0])
        assert len(asked) == 1, "what was read once is read anew"


def test_what_is_not_there_is_missing_with_its_reason(root: Path) -> None:
    with LiveHost(str(root)) as live:
        live.expect(["/proc/1/cgroup", "/proc/1/nothing", "/proc/1", "/proc/2/cgroup"])
        assert isinstance(live.read_bytes("/proc/1/cgroup"), bytes)
        assert live.read_bytes("/proc/1/nothing") == Missing("ENOENT")
        assert live.read_bytes("/proc/1") == Missing("EISDIR", "")
        assert isinstance(live.read_bytes("/proc/2/cgroup"), bytes)


def test_new_expectations_take_the_place_of_old_ones(root: Path) -> None:
    with LiveHost(str(root)) as live:
        live.expect(["/proc/1/cgroup"])
        (root / "proc/1/cgroup").write_text("later")
        live.expect(["/proc/2/cgroup"])
        assert host.text(live, "/proc/1/cgroup") == "later"


def test_a_recorder_passes_it_on_and_keeps_what_is_read(root: Path) -> None:
    with LiveHost(str(root)) as live:
        recorder = Recorder(live)
        recorder.expect(paths(3))
        assert recorder.tree == {}
        host.text(recorder, paths(1)[0])
        assert set(recorder.tree) == {paths(1)[0]}


def test_a_recording_has_all_at_hand() -> None:
    recorded = RecordedHost({"/ok": "ok\n"}, ("/",))
    recorded.expect(["/ok"])
    assert host.text(recorded, "/ok") == "ok"


def test_one_that_hangs_costs_its_bound_once_and_the_rest_is_read(tmp_path: Path) -> None:
    hung = "/proc/driver/nvidia/version"
    with mounted(tmp_path, "/proc/driver") as point, LiveHost(str(point), bound=3) as live:
        live.expect(["/ok", hung, "/ok"])
        assert host.text(live, "/ok") == "ok"
        found = live.read_bytes(hung)
        assert isinstance(found, Missing)
        assert found.errno == TIMED_OUT
        assert live.stuck == ("/proc/driver/nvidia",)
        again = Missing(TIMED_OUT, "an earlier call is still stuck")
        live.expect([hung, "/ok"])
        assert live.read_bytes(hung) == again
        assert host.text(live, "/ok") == "ok"


def test_folders_and_links_are_asked_for_with_the_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "proc/self").symlink_to("7")
    (root / "proc" / os.fsdecode(b"odd\xff\n")).mkdir()
    with LiveHost(str(root)) as live:
        live.expect(["/proc/1/cgroup"], lists=["/proc/1", "/none"], links=["/proc/self", "/proc/1"])
        monkeypatch.setattr(live, "_ask", None)
        assert host.names(live, "/proc/1") == ("cgroup",)
        assert live.listing("/none") == Missing("ENOENT")
        assert live.target("/proc/self") == "7"
        assert live.target("/proc/1") == Missing("EINVAL")
        assert host.text(live, "/proc/1/cgroup") is not None


def test_what_hangs_is_told_from_what_was_read_before_it_and_not_sent_yet(tmp_path: Path) -> None:
    hung = "/proc/driver/nvidia/version"
    with mounted(tmp_path, "/proc/driver") as point, LiveHost(str(point), bound=3) as live:
        live.expect([*["/ok"] * 50, hung, *["/ok"] * 50], lists=["/"])
        assert live.stuck == ("/proc/driver/nvidia",)
        assert host.text(live, "/ok") == "ok"
        assert live.listing("/") == Listing((), True), "it stood behind what hung"


def test_much_is_answered_in_pieces(tmp_path: Path) -> None:
    names = [f"/{number}" for number in range(40)]
    for name in names:
        (tmp_path / name[1:]).write_bytes(name.encode() * 5000)
    with LiveHost(str(tmp_path)) as live:
        live.expect(names)
        assert [live.read_bytes(name) for name in names] == [name.encode() * 5000 for name in names]


def test_a_reader_that_was_killed_meanwhile_is_made_anew(root: Path) -> None:
    with LiveHost(str(root), bound=60) as live:
        host.text(live, "/proc/1/cgroup")
        assert live._worker is not None
        pid = live._worker._pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert host.text(live, "/proc/1/cgroup") is not None
        assert live._worker._pid != pid
        assert live.stuck == ()
