"""Who says a line: the processes of a job, by name, and by how their lines begin.

The head of a line is what stands before ` NCCL INFO `. Heads of one process differ in the
thread, and there are many threads; so they are forgotten when they become too many.
"""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.facts.nccl.state import Process

_HEADS_LIMIT = 1 << 12
_Name = tuple[str, int, int]
"""Host, pid and device."""


class Speakers:
    """`take_up` is called with each process that is heard for the first time."""

    def __init__(self, take_up: Callable[[Process], None]) -> None:
        self.hosts: dict[bytes, None] = {}
        """Names of the hosts heard so far."""
        self.heads: dict[bytes, set[bytes]] = {}
        """Head -> what the channel lines of its process said, without the channel's number."""
        self._take_up = take_up
        self._processes: dict[_Name, Process] = {}
        self._by_head: dict[bytes, _Name] = {}
        self._by_name: dict[tuple[bytes, bytes], _Name] = {}

    def named(self, host: str, pid: int, device: int) -> Process:
        """The process of this name, until it begins anew."""
        name = (host, pid, device)
        return self._processes.get(name) or self._begin(name)

    def begin_anew(self, process: Process) -> Process:
        """The same host, pid and device begins again: a container restarted."""
        fresh = self._begin(_name(process))
        fresh.run = process.run + 1
        return fresh

    def _begin(self, name: _Name) -> Process:
        process = self._processes[name] = Process(*name)
        self.hosts[process.host.encode()] = None
        self._take_up(process)
        return process

    def of(self, head: bytes) -> Process | None:
        """The process of a head, if it differs from one heard before in the thread at most."""
        name = self._by_head.get(head)
        if name is None:
            name = self._by_name.get(_without_thread(head))
            if name is None:
                return None
            self._keep(head, name)
        return self._processes[name]

    def called(self, start: bytes, device: bytes) -> Process | None:
        """The process of a head that was heard with this or another thread: `HOST:PID` as the
        head begins, ` [DEV]` as it ends.
        """
        name = self._by_name.get((start, device))
        return None if name is None else self._processes[name]

    def introduce(self, head: bytes, process: Process) -> None:
        """Know this head from now on, and those with other threads in it."""
        name = _name(process)
        self._keep(head, name)
        self._by_name[_without_thread(head)] = name

    def knows(self, head: bytes) -> bool:
        """Tell whether this very head was heard before."""
        return head in self._by_head

    def listen(self, head: bytes, process: Process) -> None:
        """Let what the process has said of its channels be looked up by this head."""
        self.heads[head] = process.heard

    def forget_heads(self) -> None:
        """Know no head any more, but all the processes by their names."""
        self.heads.clear()
        self._by_head.clear()
        self._by_name.clear()

    def _keep(self, head: bytes, name: _Name) -> None:
        if len(self._by_head) > _HEADS_LIMIT:
            self._by_head.clear()
            self.heads.clear()
        self._by_head[head] = name


def _name(process: Process) -> _Name:
    return process.host, process.pid, process.device


def _without_thread(head: bytes) -> tuple[bytes, bytes]:
    return head[: head.rfind(b":")], head[head.rfind(b" ") :]
