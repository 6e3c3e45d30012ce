"""The bytes of a rendezvous: length-prefixed frames, and proof that both ends know one secret.

Who connects sends a hello with a fresh nonce; who listens answers with a nonce of its own and a
code over both, so that each connection has a key that no other ever had: the secret does not
cross the wire, and nothing recorded from one connection is accepted on another. Every later frame
carries an HMAC-SHA256 over its direction, its number and its content. Nothing is encrypted: what
is exchanged is no secret. Frames are bounded before a byte of them is read.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import TypeVar

import msgspec

VERSION = 1
MOST_HELLO = 512
MOST_REPORT = 16 << 10
MOST_CONTROL = 128 << 10
MOST_RESULT = 32 << 20
MOST_MEMBERS = 1024
LEAST_SECRET = 16
_NONCE = 32
_MAC = 32
_LENGTH = 4
HANDSHAKE_S = 10.0
T = TypeVar("T")


class WireError(Exception):
    """What came is not of this protocol, or too long, or came too late."""


class TokenError(WireError):
    """The other end does not know the same secret."""


class Purpose(StrEnum):
    """Why somebody connects: to take part, to say that it will not, or to see that it can."""

    JOIN = "join"
    LEAVE = "leave"
    PROBE = "probe"


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the connecting end says first; its rank is a claim until a later frame proves it."""

    version: int
    purpose: Purpose
    rank: int
    members: int
    nonce: str


class _Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rank: int
    nonce: str
    mac: str


def key_of(secret: bytes) -> bytes:
    """Return the key that a shared secret stands for; surrounding white space does not count."""
    return hashlib.sha256(b"gpudoctor rendezvous 1\0" + secret.strip()).digest()


def parse_hello(raw: bytes) -> Hello:
    """Read a hello; WireError for anything that is none."""
    hello = _decode(raw, Hello)
    if hello.version != VERSION:
        raise WireError(f"version {hello.version} of the protocol, this is {VERSION}")
    if not 0 <= hello.rank < MOST_MEMBERS or not 0 < hello.members <= MOST_MEMBERS:
        raise WireError("a rank or a number of members that cannot be")
    _nonce(hello.nonce)
    return hello


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a {kind.__name__.strip('_').lower()}: {error}") from None


def _nonce(text: str) -> bytes:
    try:
        nonce = bytes.fromhex(text)
    except ValueError:
        raise WireError("a nonce that is no hexadecimal number") from None
    if len(nonce) != _NONCE:
        raise WireError("a nonce of another length")
    return nonce


def _mac(key: bytes, *parts: bytes) -> bytes:
    made = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


class Channel:
    """One authenticated connection; frames in each direction are numbered from 0."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        key: bytes,
        *,
        listens: bool,
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._ours, self._theirs = (b"down", b"up") if listens else (b"up", b"down")
        self._sent = self._received = 0

    async def send(self, payload: bytes) -> None:
        """Send one frame; OSError where the connection is gone."""
        number = self._sent.to_bytes(8, "big")
        self._sent += 1
        mac = _mac(self._key, self._ours, number, payload)
        await send_raw(self._writer, mac + payload)

    async def receive(self, most: int) -> bytes:
        """Return the content of the next frame; TokenError if another secret signed it."""
        frame = await receive_raw(self._reader, most + _MAC)
        mac, payload = frame[:_MAC], frame[_MAC:]
        number = self._received.to_bytes(8, "big")
        self._received += 1
        if not hmac.compare_digest(mac, _mac(self._key, self._theirs, number, payload)):
            raise TokenError("a frame that another secret signed")
        return payload

    async def gone(self) -> None:
        """Return when the other end closes the connection, or sends what nobody asked for."""
        await self._reader.read(1)

    def close(self) -> None:
        """Close the connection, whatever is still on its way."""
        self._writer.close()


async def send_raw(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Send a frame without authentication."""
    writer.write(len(frame).to_bytes(_LENGTH, "big") + frame)
    await writer.drain()


async def receive_raw(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the next frame; WireError if it is longer than `most` bytes or ends early."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
        if length > most:
            raise WireError(f"a frame of {length} bytes, at most {most} are taken")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise WireError("the connection was closed") from None


async def greet(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    key: bytes,
    hello: tuple[Purpose, int, int],
    expected: int,
) -> Channel:
    """Open a channel as (purpose, rank, members) to the member of the `expected` rank.

    TokenError if that one does not know the secret, WireError if it is no such member.
    """
    purpose, rank, members = hello
    nonce = secrets.token_hex(_NONCE)
    raw = msgspec.json.encode(Hello(VERSION, purpose, rank, members, nonce))
    async with asyncio.timeout(HANDSHAKE_S):
        await send_raw(writer, raw)
        answer = _decode(await receive_raw(reader, MOST_HELLO), _Challenge)
        theirs = _nonce(answer.nonce)
        rank_bytes = str(answer.rank).encode()
        wanted = _mac(key, b"challenge", raw, theirs, rank_bytes).hex()
        channel = Channel(reader, writer, _mac(key, b"session", raw, theirs), listens=False)
        if not hmac.compare_digest(answer.mac.encode(), wanted.encode()):
            # One signed frame, which it cannot check either: so it learns why nothing follows.
            await channel.send(b"")
            raise TokenError("it does not know our token")
    if answer.rank != expected:
        raise WireError(f"member {answer.rank} is there instead of member {expected}")
    return channel


async def welcome(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, rank: int
) -> tuple[Hello, Channel]:
    """Answer a hello; that the caller knows the secret shows in the first frame that follows."""
    async with asyncio.timeout(HANDSHAKE_S):
        raw = await receive_raw(reader, MOST_HELLO)
        hello = parse_hello(raw)
        ours = secrets.token_bytes(_NONCE)
        mac = _mac(key, b"challenge", raw, ours, str(rank).encode())
        answer = msgspec.json.encode(_Challenge(rank, ours.hex(), mac.hex()))
        await send_raw(writer, answer)
    return hello, Channel(reader, writer, _mac(key, b"session", raw, ours), listens=True)
