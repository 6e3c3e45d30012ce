"""Standard output whose reader may go away, as a pager or head does: no error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print what is printed inside, unless its reader goes away (a pager, head): no error."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_the_rest()


def discard_the_rest() -> None:
    """Let what is still to be written to standard output go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
