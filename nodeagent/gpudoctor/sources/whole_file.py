"""Puts a file in place as a whole: a reader sees the old one or the new one, never a half."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write the file, which all may read; OSError where that is not possible, and nothing is left.

    It is made beside its place under a hidden name and then renamed.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(descriptor, 0o644)
            stream.write(content)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
