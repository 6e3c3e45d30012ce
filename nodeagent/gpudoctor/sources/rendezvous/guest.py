"""A member of a rendezvous other than 0: it connects to member 0, and again until its time is over.

A member that fails by itself says so to member 0 and goes, so that the others learn why it is
missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from gpudoctor.sources.rendezvous import (
    OTHER_SIZE,
    TOKEN,
    TURNED_AWAY,
    UNREACHED,
    UNRESOLVED,
    Outcome,
    Plan,
    parse_minutes,
    probe,
    wire,
)
from gpudoctor.sources.rendezvous.hub import Answer, Joined
from gpudoctor.sources.rendezvous.wire import Channel, Purpose, TokenError, WireError

_CONNECT_S = 5.0
_RESOLVE_S = 10.0
_ANSWER_S = 30.0
_LEAVE_S = 10.0
_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.25, 2.0
_MOST_ADDRESSES = 4


class TurnedAwayError(Exception):
    """Member 0 does not let us in."""


class UnresolvedError(Exception):
    """The name of member 0 has no address."""


class Guest:
    """One member's part. `say` is told in words how it goes."""

    def __init__(self, plan: Plan, report: dict[str, Any], say: Callable[[str], None]) -> None:
        self._plan, self._report, self._say = plan, report, say
        self._instance = secrets.token_hex(16)
        self._said = ""

    async def run(self) -> Outcome:
        """Take part, and return the minutes or why there are none."""
        return await self._until(self._plan.timeout + self._plan.grace, "")

    async def leave(self, why: str) -> None:
        """Tell member 0 that we do not take part, if it can be reached within seconds."""
        await self._until(_LEAVE_S, why)

    async def _until(self, seconds: float, failed: str) -> Outcome:
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + seconds, _FIRST_PAUSE_S
        while True:
            try:
                return await self._once(failed)
            except TokenError as error:
                return Outcome(failed=TOKEN, why=str(error))
            except TurnedAwayError as error:
                outcome = Outcome(failed=TURNED_AWAY, why=str(error))
                if str(error) == OTHER_SIZE:
                    return outcome
            except UnresolvedError as error:
                outcome = Outcome(failed=UNRESOLVED, why=str(error))
            except (WireError, OSError, TimeoutError) as error:
                outcome = Outcome(failed=UNREACHED, why=probe.reason(error))
            if loop.time() + pause > deadline:
                return outcome
            self._tell(f"member 0 at {self._plan.host}:{self._plan.port}: {outcome.why}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE_S)

    def _tell(self, words: str) -> None:
        """Say it, unless it was said last."""
        if words != self._said:
            self._said = words
            self._say(words)

    async def _once(self, failed: str) -> Outcome:
        reader, writer = await self._connect()
        try:
            purpose = Purpose.LEAVE if failed else Purpose.JOIN
            hello = (purpose, self._plan.rank, self._plan.members)
            channel = await wire.greet(reader, writer, self._plan.key, hello, expected=0)
            address = self._plan.interface or str(writer.get_extra_info("sockname")[0])
            if failed:
                await channel.send(self._joined(address, 0, failed))
                await self._answer(channel, _ANSWER_S)
                return Outcome(failed=failed)
            server, port = await probe.listen(self._plan, address)
            try:
                await channel.send(self._joined(address, port, ""))
                return await self._stay(channel)
            finally:
                server.close()
        finally:
            writer.close()

    def _joined(self, address: str, port: int, failed: str) -> bytes:
        joined = Joined(address, port, self._instance, self._report, failed)
        return msgspec.json.encode(joined)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failed: Exception = UnresolvedError("it has no address")
        for address in (await _resolve(self._plan.host))[:_MOST_ADDRESSES]:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await asyncio.open_connection(address, self._plan.port)
            except (OSError, TimeoutError) as error:
                failed = error
        raise failed

    async def _stay(self, channel: Channel) -> Outcome:
        answer = await self._answer(channel, _ANSWER_S)
        left = min(answer.left or 0.0, self._plan.timeout) + self._plan.grace
        self._tell(f"waiting for the others, at most {left:.0f} s")
        answer = await self._answer(channel, left + _ANSWER_S)
        failed = await probe.unreachable(self._plan, probe.peers_of(self._plan.rank, answer.peers))
        await channel.send(msgspec.json.encode(failed))
        async with asyncio.timeout(probe.BOUND_S + _ANSWER_S):
            minutes = parse_minutes(await channel.receive(wire.MOST_RESULT))
        if minutes is None:
            raise WireError("minutes that cannot be read")
        return Outcome(minutes=minutes)

    async def _answer(self, channel: Channel, seconds: float) -> Answer:
        async with asyncio.timeout(seconds):
            raw = await channel.receive(wire.MOST_CONTROL)
        try:
            answer = msgspec.json.decode(raw, type=Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise WireError("an answer that cannot be read") from None
        if answer.turned_away:
            raise TurnedAwayError(answer.turned_away)
        return answer


async def _resolve(host: str) -> list[str]:
    """Return the addresses of a name; a resolver that hangs is left behind in its thread."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def settle(addresses: list[str] | None, why: str) -> None:
        if not found.done():
            if addresses is None:
                found.set_exception(UnresolvedError(why))
            else:
                found.set_result(addresses)

    def ask() -> None:
        addresses: list[str] | None = None
        why = ""
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, addresses, why)

    threading.Thread(target=ask, daemon=True).start()
    try:
        async with asyncio.timeout(_RESOLVE_S):
            return await found
    except TimeoutError:
        raise UnresolvedError("the resolver does not answer") from None
