"""The parent's side of a round: gives the child a bundle and gets a report, within a deadline.

A child serves a few rounds and is then replaced: half of a round's processor time would be the
start of an interpreter with all rules, and what a process does ten times it leaks at most ten
times. It also stays while something that it reads hangs, since it alone knows what not to touch
again. A child that misses its deadline is killed; while any process of it is stuck in the kernel,
no other is started.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import msgspec

from gpudoctor.report import Report

DEADLINE_S = 90.0
"""A round takes about a second; each thing that hangs may cost its own bound, of 5 s, once."""

_END_S = 1.0
_LOOK_S = 0.05
_PIECE = 1 << 16
_MOST_ANSWER = 64 << 20
_ENVIRONMENT = ("PATH", "LANG", "LD_LIBRARY_PATH")
_PROC = Path("/proc")
_STATE, _PARENT, _SESSION = 0, 1, 3
"""Fields of /proc/PID/stat after the name in parentheses."""
_DEAD = ("Z", "X")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the child is told at its start."""

    node: str
    host_root: str | None = None
    observe: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()


class Answer(msgspec.Struct, frozen=True):
    """What the child prints, one line a round; `last` says that it ends after this one."""

    report: Report | None = None
    failure: str = ""
    last: bool = False


class Rounds:
    """Asks the child; one thread at a time."""

    def __init__(self, order: Order, deadline_s: float = DEADLINE_S) -> None:
        self._order = order
        self._deadline_s = deadline_s
        self._child: subprocess.Popen[bytes] | None = None
        self._left: subprocess.Popen[bytes] | None = None

    def ask(self, bundle: bytes) -> Report | str:
        """Return the report on one line of JSON, or the reason why there is none."""
        if self._left is not None and (self._left.poll() is None or _is_held(self._left.pid)):
            return "the round before hangs in the kernel and cannot be ended"
        self._left = None
        try:
            child = self._child = self._child or self._start()
        except OSError as error:
            return f"the process that looks at the node cannot be started: {error.strerror}"
        line = self._exchange(child, bundle)
        if isinstance(line, str):
            self._kill(child)
            return line
        try:
            answer = msgspec.json.decode(line, type=Answer)
        except (msgspec.MsgspecError, ValueError) as error:
            self._kill(child)
            return f"the answer of the process that looks at the node: {error}"
        if answer.last:
            self.close()
        return answer.report if answer.report is not None else answer.failure

    def close(self) -> None:
        """End the child, at once if it does not end by itself."""
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            _pipe(child.stdin).close()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._child = child
            self._kill(child)
        else:
            _pipe(child.stdout).close()

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not take the place of ours.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "gpudoctor.agent.round"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,
            bufsize=0,
        )
        os.set_blocking(_pipe(child.stdin).fileno(), False)
        os.set_blocking(_pipe(child.stdout).fileno(), False)
        return child

    def _exchange(self, child: subprocess.Popen[bytes], bundle: bytes) -> bytearray | str:
        """Write the bundle and read a line, whichever the pipes are ready for."""
        order = msgspec.json.encode(self._order)
        waiting = memoryview(order + b"\t" + bundle + b"\n")
        answer = bytearray()
        deadline = time.monotonic() + self._deadline_s
        with selectors.DefaultSelector() as ready:
            ready.register(_pipe(child.stdin), selectors.EVENT_WRITE)
            ready.register(_pipe(child.stdout), selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0:
                    return f"looking at the node took more than {self._deadline_s:g} s"
                for key, _ in ready.select(left):
                    if key.fileobj is child.stdout:
                        piece = os.read(key.fd, _PIECE)
                        if not piece or len(answer) > _MOST_ANSWER:
                            return "the process that looks at the node ended early"
                        answer += piece
                        continue
                    try:
                        waiting = waiting[os.write(key.fd, waiting[:_PIECE]) :]
                    except OSError:
                        return "the process that looks at the node ended early"
                    if not waiting:
                        ready.unregister(_pipe(child.stdin))
        return answer

    def _kill(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the child; what it started ends with its pipes, or is stuck in the kernel."""
        self._child, self._left = None, child
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                _pipe(pipe).close()
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_END_S)
        # What read for it, and does not hang, goes when it sees the end of its input.
        while _is_held(child.pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _is_held(session: int) -> bool:
    """Whether a process of the session lives; those that ended and became ours are reaped."""
    held = False
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
            if int(fields[_SESSION]) != session:
                continue
            if fields[_STATE] not in _DEAD:
                held = True
            elif int(fields[_PARENT]) == os.getpid():
                os.waitpid(int(entry.name), os.WNOHANG)
        except (OSError, IndexError, ValueError):
            continue
    return held
