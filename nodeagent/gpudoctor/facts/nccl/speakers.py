"""Who says a line: the processes of a job, by name, and by how their lines begin.

The head of a line is what stands before ` NCCL INFO `. Heads of one process differ in the
thread, and there are many threads; so they are forgotten when they become too many.
"""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.facts.nccl.state import Process

_HEADS_LIMIT = 1 << 12


class Speakers:
    """`take_up` is called with each process that is heard for the first time."""

    def __init__(self, take_up: Callable[[Process], None]) -> None:
        self.hosts: dict[bytes, None] = {}
        """Names of the hosts heard so far."""
        self.heads: dict[bytes, set[bytes]] = {}
        """Head -> what the channel lines of its process said, without the channel's number."""
        self._take_up = take_up
        self._processes: dict[tuple[str, int, int], Process] = {}
        self._by_head: dict[bytes, Process] = {}
        self._by_name: dict[tuple[bytes, bytes], Process] = {}

    def named(self, host: str, pid: int, device: int) -> Process:
        """The process of this name, until it begins anew."""
        name = (host, pid, device)
        return self._processes.get(name) or self._begin(name)

    def begin_anew(self, process: Process) -> Process:
        """The same host, pid and device begins again: a container restarted."""
        self.forget_heads()
        fresh = self._begin((process.host, process.pid, process.device))
        fresh.run = process.run + 1
        return fresh

    def _begin(self, name: tuple[str, int, int]) -> Process:
        process = self._processes[name] = Process(*name)
        self.hosts[process.host.encode()] = None
        self._take_up(process)
        return process

    def of(self, head: bytes) -> Process | None:
        """The process of a head, if it differs from one heard before in the thread at most."""
        process = self._by_head.get(head)
        if process is None:
            process = self._by_name.get(_without_thread(head))
            if process is not None:
                self._keep(head, process)
        return process

    def called(self, name: bytes, device: bytes) -> Process | None:
        """The process of a head that was heard with this or another thread: `HOST:PID` as the
        head begins, ` [DEV]` as it ends.
        """
        return self._by_name.get((name, device))

    def introduce(self, head: bytes, process: Process) -> None:
        """Know this head from now on, and those with other threads in it."""
        self._keep(head, process)
        self._by_name[_without_thread(head)] = process

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

    def _keep(self, head: bytes, process: Process) -> None:
        if len(self._by_head) > _HEADS_LIMIT:
            self._by_head.clear()
            self.heads.clear()
        self._by_head[head] = process


def _without_thread(head: bytes) -> tuple[bytes, bytes]:
    return head[: head.rfind(b":")], head[head.rfind(b" ") :]
