"""Whether one member can connect to another: NCCL connects each to each, on any port."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable

import msgspec

from gpudoctor.sources.rendezvous import Plan, wire
from gpudoctor.sources.rendezvous.wire import Purpose, WireError

MOST_PEERS = 64
_CONNECT_S = 3.0
BOUND_S = 2 * (_CONNECT_S + wire.HANDSHAKE_S)
"""Seconds that the tries of one member take at most."""


class Peer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a member listens for the others."""

    rank: int
    address: str
    port: int


def peers_of(rank: int, peers: Iterable[Peer]) -> list[Peer]:
    """Return whom a member tries: all others, of very many an evenly spread part.

    Member 0 is left out: each has reached it already. The part starts behind the own rank, so that
    all members together try all distances.
    """
    others = sorted((peer for peer in peers if peer.rank not in (rank, 0)), key=lambda p: p.rank)
    if len(others) <= MOST_PEERS:
        return others
    behind = [peer for peer in others if peer.rank > rank]
    ring = behind + [peer for peer in others if peer.rank < rank]
    return [ring[place * len(ring) // MOST_PEERS] for place in range(MOST_PEERS)]


async def listen(plan: Plan, address: str) -> tuple[asyncio.Server, int]:
    """Listen for the other members' tries on that address; return the port, too."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await wire.welcome(reader, writer, plan.key, plan.rank)
            await reader.read(1)  # until the other end has read the answer and closes
        except (WireError, OSError, TimeoutError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host=address, port=0, backlog=MOST_PEERS * 4)
    port: int = server.sockets[0].getsockname()[1]
    return server, port


async def unreachable(plan: Plan, peers: Iterable[Peer]) -> dict[int, str]:
    """Try to connect to each, all at once; return the ranks that failed, each with its reason.

    Those that failed are tried once more when the others are done: with little CPU, the first
    tries of all members to all others are slow.
    """
    tried = list(peers)
    failed = await _try_all(plan, tried)
    return await _try_all(plan, [peer for peer in tried if peer.rank in failed])


async def _try_all(plan: Plan, peers: list[Peer]) -> dict[int, str]:
    answers = await asyncio.gather(*(_try(plan, peer) for peer in peers))
    return {peer.rank: why for peer, why in zip(peers, answers, strict=True) if why}


async def _try(plan: Plan, peer: Peer) -> str:
    try:
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(peer.address, peer.port)
    except (OSError, TimeoutError) as error:
        return reason(error)
    try:
        hello = (Purpose.PROBE, plan.rank, plan.members)
        await wire.greet(reader, writer, plan.key, hello, peer.rank)
    except (WireError, OSError, TimeoutError) as error:
        return reason(error)
    finally:
        writer.close()
    return ""


def reason(error: Exception) -> str:
    """Return why a connection failed, as short as can be: an errno name where there is one."""
    if isinstance(error, TimeoutError) and not getattr(error, "errno", None):
        return "ETIMEDOUT"
    number = getattr(error, "errno", None)
    if isinstance(number, int) and number in errno.errorcode:
        return errno.errorcode[number]
    return str(error) or type(error).__name__
