"""What the NVML DaemonSet writes and the agent reads: fresh, old, of another boot, garbage."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudoctor.agent import nvml_writer
from gpudoctor.facts.node.gpu import NodeGpus
from gpudoctor.facts.node.gpu_reader import parse_gpus
from gpudoctor.report import Subject, Unknown
from gpudoctor.sources import nvml_file
from gpudoctor.sources.child import Answer
from tests import nvml_library

TEXT = '["?", null, "init"]\n[null, "init", true]\n'


def why(folder: Path) -> str:
    found = nvml_file.read(folder)
    assert isinstance(found, Unknown), found
    return found.why


def shifted(folder: Path, **changed: object) -> None:
    """Change the first line of the file."""
    path = folder / "nvml"
    first, _, rest = path.read_bytes().partition(b"\n")
    head = msgspec.json.decode(first)
    for name, value in changed.items():
        head[name] = head[name] + value if isinstance(value, float) else value
    path.write_bytes(msgspec.json.encode(head) + b"\n" + rest)


@pytest.mark.parametrize("in_time", [True, False])
def test_what_is_written_is_read(tmp_path: Path, in_time: bool) -> None:
    nvml_file.write(tmp_path, Answer(TEXT, in_time), 60)
    assert nvml_file.read(tmp_path) == Answer(TEXT, in_time)
    assert (tmp_path / "nvml").stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["nvml"]


def test_that_it_was_not_asked_is_told_with_the_reason(tmp_path: Path) -> None:
    nvml_file.write(tmp_path, "an earlier call hangs and cannot be ended", 60)
    assert why(tmp_path) == "an earlier call hangs and cannot be ended"


def test_no_file_is_evidence(tmp_path: Path) -> None:
    assert "has the DaemonSet that asks NVML started" in why(tmp_path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"at": -170.0}, ""),
        ({"at": -190.0}, "190 s ago"),
        ({"at": 1000.0}, "before this boot"),
        ({"boot": "another"}, "before this boot"),
    ],
)
def test_an_old_file_is_not_believed(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    nvml_file.write(tmp_path, Answer(TEXT, True), 60)
    shifted(tmp_path, **changed)
    assert (says in why(tmp_path)) if says else isinstance(nvml_file.read(tmp_path), Answer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=200))
def test_any_content_is_an_answer_or_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nvml").write_bytes(content)
    assert isinstance(nvml_file.read(tmp_path), Unknown)


def test_a_link_a_pipe_and_a_folder_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "nvml"
    path.symlink_to("/etc/hostname")
    assert "cannot be read" in why(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert "cannot be read" in why(tmp_path)
    path.unlink()
    path.mkdir()
    assert "cannot be read" in why(tmp_path)


def test_the_writer_asks_and_lets_go_of_the_driver(tmp_path: Path) -> None:
    """As the DaemonSet starts it, on a library that answers for 8 GPUs."""
    nvml_library.build(tmp_path, "gpus=8")
    folder = tmp_path / "shared"
    folder.mkdir()
    words = [sys.executable, "-m", "gpudoctor", "agent", f"--write-nvml={folder}", "--period=1"]
    with subprocess.Popen(words, env={"LD_LIBRARY_PATH": str(tmp_path)}) as writer:
        try:
            while not (folder / "nvml").exists():
                assert writer.poll() is None
            answer = nvml_file.read(folder)
            assert isinstance(answer, Answer)
            gpus = parse_gpus(answer, Subject("Node", "gpu-0"))
            assert isinstance(gpus, NodeGpus)
            assert gpus.count == 8
            mapped = Path(f"/proc/{writer.pid}/maps").read_text()
            assert "libnvidia-ml" not in mapped
        finally:
            writer.terminate()
        assert writer.wait(30) == 0


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    stop = threading.Event()

    def say(message: str) -> None:
        said.append(message)
        stop.set()

    nvml_writer.run(tmp_path / "absent", 1, stop, say)
    assert len(said) == 1
    assert "cannot be written" in said[0]
