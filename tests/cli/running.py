"""Runs the whole command line in this process, as the console script does."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from gpudoctor import cli


class Result(NamedTuple):
    status: int
    out: str
    err: str


class Terminal(io.TextIOWrapper):
    """Standard output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(
    monkeypatch: pytest.MonkeyPatch, arguments: Iterable[str], *, terminal: bool = False
) -> Result:
    """Run `gpudoctor ARGUMENTS` and return its exit status and what it wrote."""
    kind = Terminal if terminal else io.TextIOWrapper
    out = kind(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["gpudoctor", *arguments])
        patched.setattr(sys, "stdout", out)
        patched.setattr(sys, "stderr", err)
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert isinstance(out.buffer, io.BytesIO)
    assert isinstance(err.buffer, io.BytesIO)
    return Result(
        int(ended.value.code or 0),
        out.buffer.getvalue().decode(),
        err.buffer.getvalue().decode(),
    )
