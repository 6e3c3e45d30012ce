"""Large NCCL logs on two cores: a second process reads and marks, the first understands.

The second is forked once a log has proved to be large. Parts of the log go to the first through
shared memory, in turns, with what marking needs no knowledge of earlier lines for: where the
lines end, and what the channel lines hash to. Each part that was read gives its place back.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

import msgspec
import numpy as np

from gpudoctor.errors import InputError
from gpudoctor.facts.nccl.lines import LARGEST, Lines, Part, Source
from gpudoctor.facts.nccl.parser import Parser
from gpudoctor.facts.nccl.sieve import Marks

_PLACES = 8
"""Parts that may lie between the two."""
_ENOUGH = 3
"""With fewer parts before it the first process gets a part unmarked, and marks it itself: so both
have work at any time, whatever marking and understanding cost.
"""
_WORD_BYTES = 8
_GONE = (EOFError, ConnectionError)


class _Opened(msgspec.Struct, frozen=True, tag=True):
    """A source ended with this rest behind its last newline, and another begins."""

    rest: bytes
    name: str


class _Sent(msgspec.Struct, frozen=True, tag=True):
    """The next place holds a part of so many bytes, and, if it was marked, of so many lines;
    `others` are as in `Marks`, as 64-bit numbers.
    """

    size: int
    lines: int | None = None
    others: bytes = b""


class _Ended(msgspec.Struct, frozen=True, tag=True):
    """There is no more, or it cannot be read for this reason, or the second process is wrong."""

    rest: bytes = b""
    unreadable: str = ""
    defect: str = ""


class _Read(msgspec.Struct, frozen=True):
    """A part was read; what the lines of its source are like."""

    source: str
    is_prefixed: bool
    is_wrapped: bool


_messages = msgspec.msgpack.Decoder(_Opened | _Sent | _Ended)
_answers = msgspec.msgpack.Decoder(_Read)
_encode = msgspec.msgpack.Encoder().encode


class _Place:
    """Memory that both see, for one part: its bytes, and two columns of its marks."""

    def __init__(self) -> None:
        words = -(-LARGEST // _WORD_BYTES)
        # A line may be as short as a byte; but only what is written to takes memory.
        self.data = mmap.mmap(-1, (words + 2 * LARGEST) * _WORD_BYTES)
        columns = np.frombuffer(self.data, np.uint64, offset=words * _WORD_BYTES)
        self._ends, self._hashes = columns[:LARGEST].view(np.int64), columns[LARGEST:]

    def put(self, part: Part, marks: Marks | None) -> _Sent:
        """Keep a part, and say what is kept."""
        size = part.stop - part.start
        self.data[:size] = memoryview(part.data)[part.start : part.stop]
        if marks is None:
            return _Sent(size)
        count = len(marks.ends)
        self._ends[:count], self._hashes[:count] = marks.ends, marks.hashes
        return _Sent(size, count, marks.others.tobytes())

    def part(self, sent: _Sent) -> Part:
        """The part that is kept."""
        return Part(self.data, 0, sent.size)

    def marks(self, sent: _Sent) -> Marks | None:
        """Its marks, to be used before the place is given back."""
        if sent.lines is None:
            return None
        others = np.frombuffer(sent.others, np.int64)
        return Marks(self._ends[: sent.lines], self._hashes[: sent.lines], others)


def is_read(parser: Parser, pieces: Iterator[Source | bytes]) -> bool:
    """Let the parser read the rest of the pieces, which a second process reads and marks; False
    where none can run beside this one, and then no piece was taken.

    InputError where they cannot be read, or where somebody ends that process.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        return False
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    try:
        places = [_Place() for _ in range(_PLACES)]
        second = context.Process(
            target=_read_ahead, args=(parser, pieces, places, here, there), daemon=True
        )
        second.start()
    except OSError:
        here.close()
        return False
    finally:
        there.close()
    try:
        _understand(parser, places, here)
    except _GONE as error:
        second.join()
        raise InputError(
            f"{parser.sources[-1]}: the process that reads it ended with status"
            f" {second.exitcode}; -9 means that it was killed, as for lack of memory"
        ) from error
    finally:
        here.close()
        second.terminate()
        second.join()
    return True


def _understand(parser: Parser, places: list[_Place], there: Connection) -> None:
    """Read the parts in the order in which they come."""
    parser.cut = Lines()
    count = 0
    while not isinstance(message := _messages.decode(there.recv_bytes()), _Ended):
        if isinstance(message, _Opened):
            parser.feed(message.rest)
            parser.open(message.name)
            continue
        place = places[count % _PLACES]
        part = place.part(message)
        parser.read(part, place.marks(message) or parser.mark(part))
        count += 1
        there.send_bytes(_encode(_Read(parser.sources[-1], parser.is_prefixed, parser.is_wrapped)))
    parser.feed(message.rest)
    if message.unreadable:
        raise InputError(message.unreadable)
    if message.defect:
        raise RuntimeError(message.defect)


def _read_ahead(
    parser: Parser,
    pieces: Iterator[Source | bytes],
    places: list[_Place],
    not_ours: Connection,
    there: Connection,
) -> None:
    """The second process, with its own copy of the parser."""
    # Ctrl-C is for the first, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    not_ours.close()
    try:
        there.send_bytes(_encode(_ended(parser, pieces, places, there)))
        # What comes now is of no use, but must not fail.
        while True:
            there.recv_bytes()
    except _GONE:
        pass


def _ended(
    parser: Parser, pieces: Iterator[Source | bytes], places: list[_Place], there: Connection
) -> _Ended:
    """Send all that there is to read."""
    sent = read = 0
    try:
        for piece in pieces:
            if isinstance(piece, Source):
                there.send_bytes(_encode(_Opened(parser.cut.end(), piece.name)))
                parser.open(piece.name)
                continue
            for part in parser.cut.take(piece):
                while sent - read == _PLACES or there.poll():
                    _hear(parser, _answers.decode(there.recv_bytes()))
                    read += 1
                marks = parser.mark(part) if sent - read >= _ENOUGH else None
                there.send_bytes(_encode(places[sent % _PLACES].put(part, marks)))
                sent += 1
    except InputError as error:
        return _Ended(unreadable=str(error))
    except _GONE:
        raise
    except Exception as error:  # noqa: BLE001 - the first process tells it, without a traceback
        return _Ended(defect=f"{type(error).__name__}: {error}")
    return _Ended(parser.cut.end())


def _hear(parser: Parser, answer: _Read) -> None:
    """Mark the parts to come by what their source's lines are like."""
    if answer.source == parser.sources[-1]:
        parser.is_prefixed, parser.is_wrapped = answer.is_prefixed, answer.is_wrapped
