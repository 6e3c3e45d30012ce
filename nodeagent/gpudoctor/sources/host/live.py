"""This machine, read through a child: a file or command that never answers costs its bound once.

A call that hangs in the kernel cannot be ended, not even by SIGKILL, and neither can a program
start be abandoned whose file lies on a dead file system. So all of it happens in a worker
process. One that misses its bound is killed and left behind, the part of the tree it was in is
not touched again while it lives, and a new worker goes on with the rest.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpudoctor.sources.host import TIMED_OUT, UNREAD, DeviceNode, Listing, Missing, Space

BOUND = 5.0
"""Seconds that a call may take; reads in sysfs take microseconds."""

_LIMIT = 1 << 20
_MOST_ANSWER = 64 << 20
_LOOKS = 8
"""So often within a bound is looked whether a worker that says nothing gets on."""
_PIPE = 4096
"""What a pipe takes at once when it says that it has room."""
_KERNEL_LOG = "dmesg"
_WORKER = Path(__file__).with_name("worker.py")
_DEPTHS = (
    ("/sys/bus/pci/devices/", 5),
    ("/sys/class/", 4),
    ("/sys/", 3),
    ("/proc/driver/", 3),
    ("/proc/", 2),
    ("/dev/", 2),
)
"""How many components of a path make an area that one stuck driver can block."""


def area(path: str) -> str:
    """Return the part of the tree that is given up when a path in it does not answer."""
    depth = next((depth for start, depth in _DEPTHS if path.startswith(start)), 3)
    return "/".join(path.split("/")[: depth + 1])


class LiveHost:
    """The live tree at `root` (`/`, or where a host's /sys and /proc are mounted).

    Only the command lines in `programs` are ever started; others are answered as not looked at.
    """

    def __init__(
        self, root: str | None = None, bound: float = BOUND, programs: Iterable[str] = ()
    ) -> None:
        self._programs = frozenset(programs)
        self._root = (root or "").rstrip("/")
        self._bound = bound
        self._worker: _Worker | None = None
        self._stuck: dict[str, _Worker] = {}
        self._ahead: dict[tuple[str, str], Any | Missing] = {}

    def __enter__(self) -> LiveHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker; those that are stuck are left to the kernel."""
        self._ahead.clear()
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    @property
    def stuck(self) -> tuple[str, ...]:
        """The areas and commands that did not answer and still hang, or were given up."""
        return tuple(self._stuck)

    def _ask(self, where: str, bound: float, request: dict[str, Any]) -> Any | Missing:
        held = self._stuck.get(where)
        if held is not None:
            if held.is_alive():
                return Missing(TIMED_OUT, "an earlier call is still stuck")
            del self._stuck[where]
        try:
            worker = self._ready()
        except OSError as error:
            # Nothing is known then; that it "may not be read" would blame the file.
            return Missing("EIO", f"the reading process cannot be started: {error.strerror}")
        replies = worker.ask([request], bound)
        if not replies:
            self._give_up(worker, where)
            return Missing(TIMED_OUT, f"no answer in {bound:g} s")
        return _found(replies[0])

    def _ready(self) -> _Worker:
        """Return a worker that lives, a new one if need be; OSError if none can be started."""
        if self._worker is not None and not self._worker.is_alive():
            self._worker.kill()
            self._worker = None
        self._worker = self._worker or _Worker(self._root)
        return self._worker

    def _give_up(self, worker: _Worker, where: str) -> None:
        """Kill a worker that hangs there, and touch nothing there while it lives."""
        worker.kill()
        self._stuck[where] = worker
        self._worker = None

    def _look(self, op: str, path: str) -> Any | Missing:
        if (op, path) in self._ahead:
            return self._ahead.pop((op, path))
        return self._ask(area(path), self._bound, _request(op, path))

    def read_bytes(self, path: str) -> bytes | Missing:
        """Return a regular file's content, at most 1 MiB of it."""
        found = self._look("read", path)
        return found if isinstance(found, Missing) else str(found).encode("latin-1")

    def expect(
        self, reads: Iterable[str], *, lists: Iterable[str] = (), links: Iterable[str] = ()
    ) -> None:
        """Ask for all of this with one request: two switches between processes, not two for each.

        Where one does not answer, what follows it is left to be asked for by itself.
        """
        kinds = (("read", reads), ("list", lists), ("link", links))
        wanted = [(op, path) for op, paths in kinds for path in paths]
        if self._stuck:
            wanted = [one for one in wanted if area(one[1]) not in self._stuck]
        self._ahead.clear()
        if not wanted:
            return
        try:
            worker = self._ready()
        except OSError:
            return  # each call says so for itself
        replies = worker.ask([_request(*one) for one in wanted], self._bound)
        self._ahead = dict(zip(wanted, map(_found, replies), strict=False))
        if len(replies) < len(wanted):
            late = wanted[worker.at()]
            self._give_up(worker, area(late[1]))
            self._ahead[late] = Missing(TIMED_OUT, f"no answer in {self._bound:g} s")

    def listing(self, path: str) -> Listing | Missing:
        """Return the names in a directory."""
        found = self._look("list", path)
        if isinstance(found, Missing):
            return found
        return Listing(tuple(map(_name, found)), True)

    def target(self, path: str) -> str | Missing:
        """Return what a symbolic link says."""
        found = self._look("link", path)
        return found if isinstance(found, Missing) else _name(found)

    def device(self, path: str) -> DeviceNode | Missing:
        """Return a device node, and whether it opens: asked of our own container only."""
        found = self._look("device", path)
        if isinstance(found, Missing):
            return found
        opened = None
        if not self._root and path.startswith("/dev/infiniband/uverbs"):
            tried = self._look("open", path)
            opened = tried.errno if isinstance(tried, Missing) else ""
        major, minor = found["char"]
        mode = int(found["mode"], 8)
        return DeviceNode(major, minor, mode, found["uid"], found["gid"], opened)

    def space(self, path: str) -> Space | Missing:
        """Return how large and how full the file system at a path is."""
        found = self._look("space", path)
        return found if isinstance(found, Missing) else Space(found["size"], found["free"])

    def try_lock(self, size: int) -> str | Missing:
        """Lock so many bytes in the worker, which has our limits and capabilities."""
        if self._root:
            return Missing(UNREAD, "another host's limits cannot be tried from here")
        found = self._ask("locked memory", self._bound, {"op": "lock", "size": size})
        return found if isinstance(found, Missing) else str(found)

    def run(self, command: Sequence[str]) -> str | Missing:
        """Run a command with the worker's fixed search path, within the bound.

        `dmesg` is answered by the system call behind it: no image has to hold the program.
        """
        words = list(command)
        if " ".join(words) not in self._programs:
            return Missing(UNREAD, "not started")
        request: dict[str, Any] = {"op": "run", "command": words, "seconds": self._bound}
        if words == [_KERNEL_LOG]:
            request = {"op": "kernel log"}
        found = self._ask(f"command {words[0]}", self._bound + 1, request)
        return (
            found
            if isinstance(found, Missing)
            else str(found).encode("latin-1").decode("utf-8", "replace")
        )


def _request(op: str, path: str) -> dict[str, Any]:
    return {"op": op, "path": os.fsencode(path).decode("latin-1"), "limit": _LIMIT}


def _found(reply: dict[str, Any]) -> Any | Missing:
    if "errno" in reply:
        return Missing(str(reply["errno"]), str(reply.get("note", "")))
    return reply["ok"]


def _name(told: str) -> str:
    """Return a file's name of its bytes."""
    return told if told.isascii() else os.fsdecode(told.encode("latin-1"))


_ANSWERS = msgspec.json.Decoder(list[dict[str, Any]])
_MARK = 4


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, root: str) -> None:
        self._mark = os.memfd_create("mark", 0)  # inherited: the worker writes to it
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [sys.executable, "-I", "-S", str(_WORKER), root, str(self._mark)]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                command,
                {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs_in, 0),
                    (os.POSIX_SPAWN_DUP2, theirs_out, 1),
                ],
                setpgroup=0,
            )
        except OSError:
            for ours in (ours_in, ours_out, self._mark):
                os.close(ours)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        os.set_inheritable(self._mark, False)
        self._in, self._out = ours_in, ours_out
        self._poll = select.poll()
        self._poll.register(ours_in, select.POLLIN)
        self._room = select.poll()
        self._room.register(ours_out, select.POLLOUT)
        self._alive = True

    def ask(self, requests: list[dict[str, Any]], bound: float) -> list[dict[str, Any]]:
        """Return the answers in order; fewer where one does not come within the bound."""
        os.pwrite(self._mark, bytes(_MARK), 0)
        if not self._send(json.dumps({"asks": requests}).encode() + b"\n", bound):
            return []
        answers: list[dict[str, Any]] = []
        line, size, at = bytearray(), 0, 0
        deadline = time.monotonic() + bound
        while len(answers) < len(requests) and size < _MOST_ANSWER:
            if not self._poll.poll(bound * 1000 / _LOOKS):
                if self.at() == at and time.monotonic() >= deadline:
                    break
                if self.at() != at:
                    at, deadline = self.at(), time.monotonic() + bound
                continue
            part = os.read(self._in, 1 << 16)
            if not part:
                ended = {"errno": "EIO", "note": "the reading process ended"}
                return [*answers, *([ended] * (len(requests) - len(answers)))]
            size += len(part)
            line += part
            *whole, line = line.split(b"\n") if b"\n" in part else (line,)
            for one in whole:
                answers += _ANSWERS.decode(one)
            deadline = time.monotonic() + bound
        return answers

    def at(self) -> int:
        """Return the number of the request that it works on."""
        return int.from_bytes(os.pread(self._mark, _MARK, 0), "little")

    def _send(self, request: bytes, bound: float) -> bool:
        """Write a request, which may be larger than the pipe holds; whether it was all taken."""
        deadline = time.monotonic() + bound
        left = memoryview(request)
        try:
            while left:
                if not self._room.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    return False
                left = left[os.write(self._out, left[:_PIPE]) :]
        except OSError:
            return False
        return True

    def is_alive(self) -> bool:
        """Whether the process still exists; reaps it if it does not."""
        if self._alive:
            try:
                self._alive = os.waitpid(self._pid, os.WNOHANG) == (0, 0)
            except ChildProcessError:
                self._alive = False
        return self._alive

    def kill(self) -> None:
        """Send SIGKILL to the worker and what it started, and do not wait for it."""
        for ours in (self._in, self._out, self._mark):
            os.close(ours)
        if not self._alive:
            return
        try:
            os.killpg(self._pid, signal.SIGKILL)
        except ProcessLookupError:
            self._alive = False

    def end(self) -> None:
        """End an idle worker: its input is closed, and it is gone at once."""
        self.kill()
        if self._alive:
            os.waitpid(self._pid, 0)
            self._alive = False
