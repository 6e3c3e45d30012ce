"""A file system in which everything under one directory never answers: run as a script by tests.

    python hanging_fs.py MOUNTPOINT DIRECTORY

The rest of it is empty but for /ok. Killing this process ends every hang. The file
MOUNTPOINT.asked is there once a request that is never answered has been taken: only from then on
does even a killed process wait for the answer.
"""

from __future__ import annotations

import errno
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import mfusepy


class Hanging(mfusepy.Operations):  # type: ignore[misc]
    def __init__(self, directory: str, asked: Path) -> None:
        self._directory = directory
        self._asked = asked

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path.startswith(self._directory + "/"):
            self._asked.touch()
            threading.Event().wait()
        if path == "/ok":
            return {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": 3}
        if self._directory.startswith(path) or path == "/":
            return {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2}
        raise mfusepy.FuseOSError(errno.ENOENT)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", ".."]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return b"ok\n"[offset : offset + size]


if __name__ == "__main__":
    hanging = Hanging(sys.argv[2], Path(f"{sys.argv[1]}.asked"))
    mfusepy.FUSE(hanging, sys.argv[1], foreground=True, nothreads=False, fsname="hang")
