"""A mounted file system in which everything under one directory never answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import parts

SCRIPT = Path(__file__).with_name("hanging_fs.py")


@contextlib.contextmanager
def mounted(tmp_path: Path, directory: str) -> Iterator[Path]:
    """Mount it and yield where; what waits in it goes on, or dies, when it is unmounted."""
    parts.module("mfusepy")
    parts.program("fusermount3", "fuse3")
    if not os.access("/dev/fuse", os.W_OK):
        parts.missing("/dev/fuse")
    point = tmp_path / "mount"
    point.mkdir()
    server = subprocess.Popen([sys.executable, str(SCRIPT), str(point), directory])
    try:
        while not os.path.ismount(point):
            assert server.poll() is None, "the file system did not start"
        yield point
    finally:
        server.kill()
        server.wait()
        subprocess.run(["fusermount3", "-uz", str(point)], check=False)
