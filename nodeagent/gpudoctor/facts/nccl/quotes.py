"""The last error of NCCL that PyTorch quotes in its exceptions, below `Last error:`.

Where NCCL_DEBUG is not set it is all of NCCL's that a log has. Such lines do not name NCCL, so
that they are looked for by what stands above them, at the end of a log only: there is where a
job's exceptions are, and a large log costs no more for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudoctor.facts.nccl.parser import Parser

TAIL_BYTES = 1 << 18
_ABOVE = b"Last error:"
_FARTHEST_LINES = 4
"""Other ranks' lines may stand between."""
_LONGEST = 1 << 11
_LEVELS = (b" NCCL INFO ", b" NCCL WARN ")


def read(parser: Parser, tail: bytes) -> None:
    """Read what the end of a source quotes, once the parser has read it."""
    at = tail.find(_ABOVE)
    if at < 0 or not parser.sources:
        return
    first = parser.lines - parser.book.lines_before - tail.count(b"\n") + 1
    while at >= 0:
        begin = tail.find(b"\n", at) + 1
        if not begin:
            return
        number = first + tail.count(b"\n", 0, begin)
        below = tail[begin : begin + _FARTHEST_LINES * _LONGEST].split(b"\n")[:_FARTHEST_LINES]
        for offset, line in enumerate(below):
            is_record = any(level in line for level in _LEVELS)
            if not is_record and parser.book.quote(parser.sources[-1], number + offset, line):
                break
        at = tail.find(_ABOVE, begin)
