"""The last error of NCCL that PyTorch quotes in its exceptions, below `Last error:`.

Where NCCL_DEBUG is not set it is all of NCCL's that a log has. Such lines do not name NCCL, so
that they are looked for by what stands above them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudoctor.facts.nccl.parser import Parser

_ABOVE = b"Last error:"
_FARTHEST_LINES = 4
"""Other ranks' lines may stand between."""
_LONGEST = 1 << 11


def read(parser: Parser, piece: bytes) -> None:
    """Read what a piece of the log quotes; the parser takes the same piece after it.

    What is cut off at the end of a piece is left out: such logs are one piece.
    """
    at = piece.find(_ABOVE)
    if at < 0 or not parser.sources:
        return
    first = parser.lines - parser.book.lines_before + 1
    while at >= 0:
        begin = piece.find(b"\n", at) + 1
        if not begin:
            return
        number = first + piece.count(b"\n", 0, begin)
        below = piece[begin : begin + _FARTHEST_LINES * _LONGEST].split(b"\n")[:_FARTHEST_LINES]
        for offset, line in enumerate(below):
            is_quoted = b" NCCL " not in line
            if is_quoted and parser.book.quote(parser.sources[-1], number + offset, line):
                break
        at = piece.find(_ABOVE, begin)
