"""`gpudoctor bundle`: this machine recorded; the replay gives the answer of the live check."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpudoctor import readings, registry
from gpudoctor.cli.bundle import command
from gpudoctor.readings import host as hosts
from gpudoctor.sources import bundle
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.host.live import LiveHost
from gpudoctor.sources.host.recorder import Recorder

CHECKS = registry.load()


def test_records_this_host_privately(tmp_path: Path) -> None:
    path = tmp_path / "host.tar.gz"
    result = CliRunner().invoke(command, [str(path)])
    assert result.exit_code == 0, result.output
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    recorded = bundle.decode(path.read_bytes(), "host.tar.gz")
    assert recorded.hosts["local"].tree["/proc/sys/kernel/osrelease"].strip() == os.uname().release
    answer = readings.judge(hosts.read_recorded(recorded), CHECKS)
    assert answer.verdict in ("unknown", "healthy", "warning", "failing")
    with tarfile.open(path) as archive:
        member = archive.extractfile("manifest.json")
        assert member is not None
        with member:
            manifest = json.loads(member.read())
    assert "/proc/sys/kernel/osrelease" in manifest["hosts"]["local"]["read"]


def test_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text("precious")
    result = CliRunner().invoke(command, [str(path)])
    assert "is there already" in str(result.exception)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("name", ["-", "host.zip", "host"])
def test_says_how_a_bundle_is_named(name: str) -> None:
    result = CliRunner().invoke(command, [name])
    assert "ends in .tar.gz or .json" in str(result.exception)
    assert not Path(name).exists()


@pytest.mark.parametrize("arguments", [["--no-host"], ["--pod", ""], ["--node", "", "--no-host"]])
def test_nothing_to_record_is_wrong_usage(tmp_path: Path, arguments: list[str]) -> None:
    path = tmp_path / "host.json"
    assert CliRunner().invoke(command, [*arguments, str(path)]).exit_code == 2
    assert not path.exists()


def test_the_replay_answers_as_the_live_reading() -> None:
    with LiveHost(programs=hosts.PROGRAMS) as live:
        recorder = Recorder(live)
        seen = hosts.read(recorder, hosts.LOCAL, None)
    replayed = hosts.read_recorded(Bundle(hosts={"local": HostRecording(tree=recorder.tree)}))
    assert replayed.facts == seen.facts
    assert replayed.published == seen.published
    assert replayed.unknown == seen.unknown
    assert readings.judge(replayed, CHECKS) == readings.judge(seen, CHECKS)
