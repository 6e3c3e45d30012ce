"""The bytes of the rendezvous: whatever comes, and who knows the secret."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.sources.rendezvous import parse_minutes, wire
from gpudoctor.sources.rendezvous.wire import Channel, Purpose, TokenError, WireError

T = TypeVar("T")
KEY, OTHER = wire.key_of(b"0123456789abcdef"), wire.key_of(b"0123456789abcdeX")
HELLO = (Purpose.JOIN, 3, 8)

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[T]]


def between(listener: Speak[T], caller: Speak[object]) -> T:
    """Connect the two over loopback; return what the listener returned or raise what it raised."""

    async def meet() -> T:
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                answered.set_result(await listener(reader, writer))
            except (WireError, OSError, TimeoutError) as error:
                answered.set_exception(error)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            port = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(WireError):
                await caller(reader, writer)
            writer.close()
            return await answered
        finally:
            server.close()

    return asyncio.run(meet())


async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    hello, channel = await wire.welcome(reader, writer, KEY, 0)
    assert (hello.purpose, hello.rank, hello.members) == HELLO
    return await channel.receive(100)


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes = KEY, rank: int = 0
) -> Channel:
    return await wire.greet(reader, writer, key, HELLO, rank)


def test_both_know_the_secret() -> None:
    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = await greet(reader, writer)
        await channel.send(b"what I am")

    assert between(welcome, caller) == b"what I am"


def test_white_space_around_the_secret_does_not_count() -> None:
    assert wire.key_of(b"0123456789abcdef\n") == KEY
    assert OTHER != KEY


def test_another_secret_shows_on_both_sides() -> None:
    seen: list[str] = []

    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await greet(reader, writer, OTHER)
        except TokenError as error:
            seen.append(str(error))

    with pytest.raises(TokenError):
        between(welcome, caller)
    assert seen == ["it does not know our token"]


def test_another_member_at_the_address_is_told() -> None:
    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with pytest.raises(WireError, match="member 0 is there instead of member 5"):
            await greet(reader, writer, rank=5)

    with pytest.raises(WireError):
        between(welcome, caller)


@pytest.mark.parametrize("change", ["content", "repeated", "cut"])
def test_a_frame_that_was_changed_on_its_way(change: str) -> None:
    """As a man in the middle would: flip a bit, send a frame twice, end it early."""

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        _, channel = await wire.welcome(reader, writer, KEY, 0)
        await channel.receive(100)
        return await channel.receive(100)

    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        recorded: list[bytes] = []
        write = writer.write
        channel = await greet(reader, writer)
        writer.write = recorded.append  # type: ignore[method-assign, assignment]
        await channel.send(b"first")
        await channel.send(b"second")
        first, second = recorded
        write(first)
        if change == "repeated":
            write(first)
        elif change == "content":
            write(second[:-1] + bytes([second[-1] ^ 1]))
        else:
            write(second[:-1])
        await writer.drain()

    expected = WireError if change == "cut" else TokenError
    with pytest.raises(expected):
        between(listener, caller)


def test_nothing_of_one_connection_is_taken_on_another() -> None:
    """Hello and frame of an earlier connection, byte for byte."""
    recorded: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        write = writer.write

        def keep(data: bytes) -> None:
            recorded.append(data)
            write(data)

        writer.write = keep  # type: ignore[method-assign, assignment]
        channel = await greet(reader, writer)
        await channel.send(b"what I am")

    async def replay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for data in recorded:
            writer.write(data)
        await writer.drain()
        await wire.receive_raw(reader, wire.MOST_HELLO)

    assert between(welcome, record) == b"what I am"
    with pytest.raises(TokenError):
        between(welcome, replay)


def test_a_frame_that_is_too_long_is_not_read() -> None:
    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((1 << 31).to_bytes(4, "big") + b"x" * 64)
        await writer.drain()

    with pytest.raises(WireError, match="at most 512 are taken"):
        between(welcome, caller)


@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode()))
@settings(deadline=None, max_examples=60)
def test_a_listener_takes_any_bytes(sent: bytes) -> None:
    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        writer.write_eof()

    with pytest.raises(WireError):
        between(welcome, caller)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "version": st.integers(0, 3),
        "purpose": st.sampled_from(["join", "leave", "probe", "x"]),
        "rank": st.integers(-2, 2000),
        "members": st.integers(-2, 2000),
        "nonce": st.text(max_size=70) | st.binary(min_size=32, max_size=32).map(bytes.hex),
        "more": JSON,
    },
)


@given(
    st.binary(max_size=600) | (JSON | FIELDS).map(lambda v: __import__("json").dumps(v).encode())
)
@settings(deadline=None, max_examples=300)
def test_a_hello_is_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        hello = wire.parse_hello(raw)
        assert 0 <= hello.rank < wire.MOST_MEMBERS
        assert len(bytes.fromhex(hello.nonce)) == 32
    minutes = parse_minutes(raw)
    assert minutes is None or minutes.entries is not None


def test_deep_nesting_is_refused() -> None:
    raw = b'{"version":' + b"[" * 100_000
    with pytest.raises(WireError):
        wire.parse_hello(raw)
    assert parse_minutes(raw) is None
