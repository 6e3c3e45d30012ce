"""Modules of ours that run in a short-lived child: libraries that hang, or that are heavy.

A driver call can hang uninterruptibly; gRPC takes 35 MiB. In a child the first costs its bound
once and no more, and the second is gone when the answer is there. The answer is text, so that it
can be recorded and read again by a better parser.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

_REAP_S = 0.5
_MAX_ANSWER = 1 << 24


class Answer(msgspec.Struct, frozen=True):
    """What the child printed; `in_time` is False where it had to be killed.

    `ended` is False where that did not end it, since it hangs in the kernel. Until it ends no
    other is started, and the answer is empty.
    """

    text: str
    in_time: bool
    ended: bool = True


class ChildSource:
    """Starts a module as a child, one at a time, and none while an earlier one cannot be killed.

    `environment` names the variables that the child may see.
    """

    def __init__(self, module: str, environment: Sequence[str]) -> None:
        self._module = module
        self._environment = tuple(environment)
        self._lock = threading.Lock()
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, deadline_s: float, *arguments: str) -> Answer | str:
        """Return the child's answer, or the reason why none was asked for."""
        with self._lock:
            if self._stuck is not None and self._stuck.poll() is None:
                return Answer("", in_time=False, ended=False)
            self._stuck = None
            # In memory: a container may have no place that it can write to.
            with os.fdopen(os.memfd_create("answer"), "rb") as answer:
                try:
                    child = self._start(answer.fileno(), arguments)
                except OSError as error:
                    return f"the reading process cannot be started: {error.strerror}"
                in_time = self._wait(child, deadline_s)
                answer.seek(0)
                printed = answer.read(_MAX_ANSWER).decode("utf-8", "replace")
                return Answer(printed, in_time, ended=self._stuck is None)

    def _start(self, output: int, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        # -P: a module in the working directory must not take the place of ours.
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", self._module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in self._environment if name in os.environ},
            start_new_session=True,
        )

    def _wait(self, child: subprocess.Popen[bytes], deadline_s: float) -> bool:
        try:
            child.wait(deadline_s)
        except subprocess.TimeoutExpired:
            child.kill()
            try:
                child.wait(_REAP_S)
            except subprocess.TimeoutExpired:
                self._stuck = child  # uninterruptible in the kernel: killed once the call returns
            return False
        return True
