"""Who says a line: the processes of a job, by name, and by how their lines begin.

The head of a line is what stands before ` NCCL INFO `. Heads of one process differ in the
thread, and there are many threads; so they are forgotten when they become too many.
"""

from __future__ import annotations

from collections.abc import Callable

from gpudoctor.facts.nccl.state import Process

_HEADS_LIMIT = 1 << 12


class _Seat:
    """Which process has a name now."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process


class Speakers:
    """`take_up` is called with each process that is heard for the first time."""

    def __init__(self, take_up: Callable[[Process], None]) -> None:
        self.hosts: dict[bytes, None] = {}
        """Names of the hosts heard so far."""
        self.heads: dict[bytes, set[bytes]] = {}
        """Head -> what the channel lines of its process said, without the channel's number."""
        self._take_up = take_up
        self._seats: dict[tuple[str, int, int], _Seat] = {}
        self._by_head: dict[bytes, _Seat] = {}
        self._by_name: dict[tuple[bytes, bytes], _Seat] = {}

    def named(self, host: str, pid: int, device: int) -> Process:
        """The process of this name, until it begins anew."""
        seat = self._seats.get((host, pid, device))
        if seat is None:
            self.hosts[host.encode()] = None
            seat = self._seats[host, pid, device] = _Seat(self._begin(host, pid, device))
        return seat.process

    def begin_anew(self, process: Process) -> Process:
        """The same host, pid and device begins again: a container restarted."""
        fresh = self._begin(process.host, process.pid, process.device)
        fresh.run = process.run + 1
        self._seat(process).process = fresh
        return fresh

    def _begin(self, host: str, pid: int, device: int) -> Process:
        process = Process(host, pid, device)
        self._take_up(process)
        return process

    def _seat(self, process: Process) -> _Seat:
        return self._seats[process.host, process.pid, process.device]

    def of(self, head: bytes) -> Process | None:
        """The process of a head, if it differs from one heard before in the thread at most."""
        seat = self._by_head.get(head)
        if seat is None:
            seat = self._by_name.get(_without_thread(head))
            if seat is None:
                return None
            self._keep(head, seat)
        return seat.process

    def called(self, start: bytes, device: bytes) -> Process | None:
        """The process of a head that was heard with this or another thread: `HOST:PID` as the
        head begins, ` [DEV]` as it ends.
        """
        seat = self._by_name.get((start, device))
        return None if seat is None else seat.process

    def introduce(self, head: bytes, process: Process) -> None:
        """Know this head from now on, and those with other threads in it."""
        seat = self._seat(process)
        self._keep(head, seat)
        self._by_name[_without_thread(head)] = seat

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

    def _keep(self, head: bytes, seat: _Seat) -> None:
        if len(self._by_head) > _HEADS_LIMIT:
            self._by_head.clear()
            self.heads.clear()
        self._by_head[head] = seat


def _without_thread(head: bytes) -> tuple[bytes, bytes]:
    return head[: head.rfind(b":")], head[head.rfind(b" ") :]
