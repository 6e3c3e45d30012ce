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

from gpudoctor.sources.host import TIMED_OUT, UNREAD, DeviceNode, Listing, Missing, Space

BOUND = 5.0
"""Seconds that a call may take; reads in sysfs take microseconds."""

_LIMIT = 1 << 20
_MOST_ANSWER = 64 << 20
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
        self._ahead: dict[str, bytes | Missing] = {}

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
        if self._worker is None:
            try:
                self._worker = _Worker(self._root)
            except OSError as error:
                # Nothing is known then; that it "may not be read" would blame the file.
                return Missing("EIO", f"the reading process cannot be started: {error.strerror}")
        reply = self._worker.ask(request, bound)
        if reply is None:
            self._worker.kill()
            self._stuck[where] = self._worker
            self._worker = None
            return Missing(TIMED_OUT, f"no answer in {bound:g} s")
        if "errno" in reply:
            return Missing(str(reply["errno"]), str(reply.get("note", "")))
        return reply["ok"]

    def read_bytes(self, path: str) -> bytes | Missing:
        """Return a regular file's content, at most 1 MiB of it."""
        if path in self._ahead:
            return self._ahead.pop(path)
        request = {"op": "read", "path": path, "limit": _LIMIT}
        found = self._ask(area(path), self._bound, request)
        return found if isinstance(found, Missing) else str(found).encode("latin-1")

    def expect(self, paths: Iterable[str]) -> None:
        """Read these files with one request: two switches between processes, not two for each.

        Where one does not answer, the rest is left for `read_bytes` to ask.
        """
        wanted = [path for path in paths if area(path) not in self._stuck]
        self._ahead.clear()
        if not wanted:
            return
        worker = self._worker = self._worker or _Worker(self._root)
        request = {"op": "read all", "paths": wanted, "limit": _LIMIT}
        replies = worker.ask_all(request, len(wanted), self._bound)
        self._ahead = dict(zip(wanted, map(_content, replies), strict=False))
        if len(replies) < len(wanted):
            worker.kill()
            self._worker = None
            late = wanted[len(replies)]
            self._stuck[area(late)] = worker
            self._ahead[late] = Missing(TIMED_OUT, f"no answer in {self._bound:g} s")

    def listing(self, path: str) -> Listing | Missing:
        """Return the names in a directory."""
        found = self._ask(area(path), self._bound, {"op": "list", "path": path})
        return found if isinstance(found, Missing) else Listing(tuple(found), True)

    def target(self, path: str) -> str | Missing:
        """Return what a symbolic link says."""
        found = self._ask(area(path), self._bound, {"op": "link", "path": path})
        return found if isinstance(found, Missing) else str(found)

    def device(self, path: str) -> DeviceNode | Missing:
        """Return a device node, and whether it opens: asked of our own container only."""
        found = self._ask(area(path), self._bound, {"op": "device", "path": path})
        if isinstance(found, Missing):
            return found
        opened = None
        if not self._root and path.startswith("/dev/infiniband/uverbs"):
            tried = self._ask(area(path), self._bound, {"op": "open", "path": path})
            opened = tried.errno if isinstance(tried, Missing) else ""
        major, minor = found["char"]
        mode = int(found["mode"], 8)
        return DeviceNode(major, minor, mode, found["uid"], found["gid"], opened)

    def space(self, path: str) -> Space | Missing:
        """Return how large and how full the file system at a path is."""
        found = self._ask(area(path), self._bound, {"op": "space", "path": path})
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


def _content(reply: dict[str, Any]) -> bytes | Missing:
    if "errno" in reply:
        return Missing(str(reply["errno"]), str(reply.get("note", "")))
    return str(reply["ok"]).encode("latin-1")


class _Worker:
    """One worker process and the pipes to it."""

    def __init__(self, root: str) -> None:
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        command = [sys.executable, "-I", "-S", str(_WORKER), root]
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
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._poll = select.poll()
        self._poll.register(ours_in, select.POLLIN)
        self._room = select.poll()
        self._room.register(ours_out, select.POLLOUT)
        self._alive = True

    def ask(self, request: dict[str, Any], bound: float) -> dict[str, Any] | None:
        """Send a request and return the answer; None if there is none within the bound."""
        return next(iter(self.ask_all(request, 1, bound)), None)

    def ask_all(self, request: dict[str, Any], count: int, bound: float) -> list[dict[str, Any]]:
        """Send a request and return its answers; fewer where one does not come within the bound."""
        if not self._send(json.dumps(request).encode() + b"\n", bound):
            return []
        deadline = time.monotonic() + bound
        received, lines = bytearray(), 0
        while lines < count and len(received) < _MOST_ANSWER:
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                break
            part = os.read(self._in, 1 << 16)
            if not part:
                ended = {"errno": "EIO", "note": "the reading process ended"}
                return [*_decoded(received), *([ended] * (count - lines))]
            received += part
            if new := part.count(b"\n"):
                lines += new
                deadline = time.monotonic() + bound
        return _decoded(received)

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
        os.close(self._in)
        os.close(self._out)
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


def _decoded(received: bytearray) -> list[dict[str, Any]]:
    """Return the whole lines; what follows the last line break was cut off."""
    return [json.loads(line) for line in received.split(b"\n")[:-1]]
