"""NCCL logs: many ranks, any prefix, any version from 2.4 on, read as a stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpudoctor.facts.nccl.model import NcclLog


def parse(chunks: Iterable[bytes], source: str = "log") -> NcclLog:
    """Read one log, given in pieces cut anywhere; any bytes are accepted."""
    # Imported late, because check modules import this package.
    from gpudoctor.facts.nccl.parser import Parser

    parser = Parser()
    parser.open(source)
    for chunk in chunks:
        parser.feed(chunk)
    return parser.finish()
