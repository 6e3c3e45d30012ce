"""Member 0 of a rendezvous: it listens, collects what each member says, and tells it to all."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from gpudoctor.sources.rendezvous import (
    NO_PORT,
    OTHER_SIZE,
    OTHER_TOKEN,
    RANK_TAKEN,
    Entry,
    Minutes,
    Outcome,
    Plan,
    Refused,
    probe,
    wire,
)
from gpudoctor.sources.rendezvous.probe import Peer
from gpudoctor.sources.rendezvous.wire import Channel, Hello, Purpose, TokenError, WireError

_ANSWER_S = 20.0
_SLACK_S = 5.0
_SAY_S = 30.0
_MOST_REFUSED = 64
_WENT = "went away again"
_SILENT = "stopped answering"


class Joined(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's first frame: where it listens and what it says of itself.

    `instance` tells one process from another of the same rank and address. `failed` is why it will
    not take part: its own preflight ended so.
    """

    address: str
    port: int
    instance: str
    report: dict[str, Any]
    failed: str = ""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What member 0 sends: at first the seconds left or why not, then whom to try."""

    left: float | None = None
    turned_away: str = ""
    peers: tuple[Peer, ...] = ()


class _Guest:
    """A member that is there; `done` once it has said whom it cannot reach."""

    def __init__(self, rank: int, address: str, joined: Joined, came: float, late: bool) -> None:
        self.rank, self.address, self.joined = rank, address, joined
        self.came, self.late = came, late
        self.unreachable: dict[int, str] | None = None
        self.done = asyncio.Event()

    def entry(self, note: str = "") -> Entry:
        return Entry(
            rank=self.rank,
            address=self.address,
            report=self.joined.report,
            came=round(self.came, 1),
            late=self.late,
            note=note,
            unreachable=self.unreachable,
        )


class Hub:
    """One rendezvous. `say` is told in words how it goes."""

    def __init__(self, plan: Plan, report: dict[str, Any], say: Callable[[str], None]) -> None:
        self._plan, self._report, self._say = plan, report, say
        self._guests: dict[int, _Guest] = {}
        self._left: dict[int, Entry] = {}
        self._refused: dict[str, Refused] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closed = asyncio.Event()
        self._decided = asyncio.Event()
        self._minutes = b""
        self._began = 0.0

    async def run(self) -> Outcome:
        """Listen until all are there or the time is over, and return the minutes."""
        self._began = asyncio.get_running_loop().time()
        try:
            listener = _listener(self._plan.port)
        except OSError as error:
            why = f"cannot listen on port {self._plan.port}: {error.strerror or error}"
            return Outcome(failed=NO_PORT, why=why)
        server = await asyncio.start_server(self._serve, sock=listener)
        try:
            await self._wait_for_all()
            self._closed.set()
            minutes = await self._compare()
            self._minutes = msgspec.json.encode(minutes)
            self._decided.set()
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_ANSWER_S)
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        return Outcome(minutes=minutes)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    @property
    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._plan.members) if rank not in self._guests]

    async def _wait_for_all(self) -> None:
        plan = self._plan
        for end, words in ((plan.timeout, "s left"), (plan.timeout + plan.grace, "s of grace")):
            while self._missing and self._now < end:
                self._changed.clear()
                left = end - self._now
                self._say(f"{_named(self._missing)} not there yet, {left:.0f} {words}")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), min(_SAY_S, left))

    async def _compare(self) -> Minutes:
        """Have all members try each other, as we do ourselves; wait for their answers, bounded."""
        tries = asyncio.ensure_future(probe.unreachable(self._plan, self._peers()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(probe.BOUND_S + _SLACK_S):
                for guest in self._guests.values():
                    await guest.done.wait()
        own = await tries
        ours = Entry(rank=0, report=self._report, came=0.0, unreachable=own)
        return Minutes(
            timeout=self._plan.timeout,
            entries=(ours, *(self._entry(rank) for rank in range(1, self._plan.members))),
            refused=tuple(self._still_refused()),
        )

    def _entry(self, rank: int) -> Entry:
        guest = self._guests.get(rank)
        if guest is not None:
            return guest.entry("" if guest.done.is_set() else _SILENT)
        return self._left.get(rank) or Entry(rank=rank)

    def _still_refused(self) -> list[Refused]:
        """Leave out who was let in later: its predecessor had still held the rank."""
        let_in = {guest.joined.instance for guest in self._guests.values()}
        return [one for instance, one in self._refused.items() if instance not in let_in]

    def _peers(self) -> list[Peer]:
        return [
            Peer(guest.rank, guest.joined.address, guest.joined.port)
            for guest in self._guests.values()
        ]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        address = address.removeprefix("::ffff:")  # IPv4 at a socket for both
        if len(self._tasks) > 2 * self._plan.members + 64:
            writer.close()
            return
        self._tasks.add(task)
        claims = -1
        try:
            hello, channel = await wire.welcome(reader, writer, self._plan.key, 0)
            claims = hello.rank
            if hello.purpose is not Purpose.PROBE:
                await self._admit(hello, channel, address)
        except TokenError:
            self._refuse(f"{address} {claims}", Refused(address, claims, OTHER_TOKEN))
        except (WireError, OSError, TimeoutError):
            pass  # whoever it is comes again, or is missed
        finally:
            writer.close()
            self._tasks.discard(task)

    def _refuse(self, instance: str, refused: Refused) -> None:
        if len(self._refused) < _MOST_REFUSED and not self._closed.is_set():
            self._refused[instance] = refused

    async def _admit(self, hello: Hello, channel: Channel, address: str) -> None:
        async with asyncio.timeout(_ANSWER_S):
            joined = _joined(await channel.receive(wire.MOST_REPORT + wire.MOST_HELLO))
        why = self._why_not(hello)
        if why:
            self._refuse(joined.instance, Refused(address, hello.rank, why))
            await channel.send(msgspec.json.encode(Answer(turned_away=why)))
            return
        guest = _Guest(hello.rank, address, joined, self._now, late=self._now > self._plan.timeout)
        if hello.purpose is Purpose.LEAVE:
            self._left[hello.rank] = guest.entry(joined.failed or _WENT)
            await channel.send(msgspec.json.encode(Answer()))
            return
        await self._host(guest, channel)

    def _why_not(self, hello: Hello) -> str:
        if hello.members != self._plan.members:
            return OTHER_SIZE
        taken = hello.rank == 0 or hello.rank in self._guests
        if taken or hello.rank >= self._plan.members or self._closed.is_set():
            return RANK_TAKEN
        return ""

    async def _host(self, guest: _Guest, channel: Channel) -> None:
        """Keep a member until all are there, then let it try the others and tell it the end."""
        self._guests[guest.rank] = guest
        self._changed.set()
        try:
            left = max(0.0, self._plan.timeout - self._now)
            await channel.send(msgspec.json.encode(Answer(left=left)))
            await self._until_closed(channel)
            answer = Answer(peers=tuple(self._peers()))
            await channel.send(msgspec.json.encode(answer))
            async with asyncio.timeout(probe.BOUND_S + _ANSWER_S):
                guest.unreachable = _ranks(await channel.receive(wire.MOST_CONTROL))
            guest.done.set()
        finally:
            if not self._closed.is_set():
                self._left[guest.rank] = guest.entry(_WENT)
                del self._guests[guest.rank]
                self._changed.set()
        await self._decided.wait()
        await channel.send(self._minutes)
        await channel.gone()

    async def _until_closed(self, channel: Channel) -> None:
        """Wait for the others; WireError if this one goes first."""
        closed = asyncio.ensure_future(self._closed.wait())
        gone = asyncio.ensure_future(channel.gone())
        try:
            await asyncio.wait((closed, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
            gone.cancel()
            await asyncio.gather(closed, gone, return_exceptions=True)
        if not self._closed.is_set():
            raise WireError("it went away")


def _listener(port: int) -> socket.socket:
    """Listen on all addresses of both families, of IPv4 where that is all there is."""
    both = socket.has_dualstack_ipv6()
    return socket.create_server(
        ("", port),
        family=socket.AF_INET6 if both else socket.AF_INET,
        dualstack_ipv6=both,
        backlog=wire.MOST_MEMBERS,
    )


def _joined(raw: bytes) -> Joined:
    try:
        return msgspec.json.decode(raw, type=Joined)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WireError("no report") from None


def _ranks(raw: bytes) -> dict[int, str]:
    try:
        return msgspec.json.decode(raw, type=dict[int, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise WireError("no list of ranks") from None


def _named(ranks: list[int]) -> str:
    first = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"members {first}{more}" if len(ranks) > 1 else f"member {first}"
