"""`gpudoctor nccl --follow` as it is used: a file that grows, is rotated, or is cut."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from tests.nccl_logs import pair, ring, start

BOUND = 120


class Follower:
    """A running `gpudoctor nccl --follow`, and what it says on standard error."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "gpudoctor", "nccl", "--follow", str(path)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._said: Queue[str] = Queue()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._out, self._err = self.process.stdout, self.process.stderr
        self._ears = threading.Thread(target=self._listen, daemon=True)
        self._ears.start()

    def _listen(self) -> None:
        for line in self._err:
            self._said.put(line.decode())

    def hears(self, words: str) -> str:
        """Wait for a line with these words."""
        while words not in (line := self._said.get(timeout=BOUND)):
            pass
        return line

    def stop(self) -> str:
        """End it as Ctrl-C does; return its report."""
        self.process.send_signal(signal.SIGINT)
        return self._out.read().decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait(BOUND)
        self._ears.join(BOUND)
        self._out.close()
        self._err.close()


@contextmanager
def following(path: Path) -> Iterator[Follower]:
    follower = Follower(path)
    try:
        yield follower
    finally:
        follower.close()


def fallback() -> str:
    """Two hosts that meant to use RDMA and do not."""
    ranks = pair()
    lines = start(ranks, network="Socket", adapters=None, environment=["NCCL_IB_HCA set to mlx5"])
    return "\n".join(lines + ring(ranks, "NET/Socket/0")) + "\n"


def healthy() -> str:
    ranks = pair()
    return "\n".join(start(ranks) + ring(ranks)) + "\n"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_fallback_shows_while_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    lines = fallback().splitlines(keepends=True)
    path.write_text(lines[0])
    with following(path) as follower:
        follower.hears("network none")
        append(path, "".join(lines[1:]))
        follower.hears("NCL001")
        assert "goes over TCP" in follower.stop()


@pytest.mark.parametrize("way", ["renamed", "cut"])
def test_a_rotated_log_is_read_on(tmp_path: Path, way: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(healthy() * 2)
    with following(path) as follower:
        follower.hears("network IB")
        if way == "renamed":
            path.rename(tmp_path / "x.log.1")
            path.write_text(fallback())
        else:
            path.write_text(fallback())
        follower.hears("NCL001")


def test_what_was_written_last_before_a_rotation_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text(healthy())
    with following(path) as follower:
        follower.hears("network IB")
        old = path.open("a")
        path.rename(tmp_path / "x.log.1")
        old.write(fallback())
        old.close()
        path.write_text("a new day\n")
        follower.hears("NCL001")


def test_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log.gz"
    path.write_bytes(gzip.compress(healthy().encode()))
    with following(path) as follower:
        line = follower.hears("compressed")
        assert follower.process.wait(BOUND) == 2
    assert "leave out --follow" in line
