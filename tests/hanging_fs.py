"""A file system in which everything under one directory never answers: run as a script by tests.

    python hanging_fs.py MOUNTPOINT DIRECTORY

The rest of it is empty but for /ok. Killing this process ends every hang.
"""

from __future__ import annotations

import errno
import stat
import sys
import threading
from typing import Any

import mfusepy


class Hanging(mfusepy.Operations):  # type: ignore[misc]
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path.startswith(self._directory + "/"):
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
    mfusepy.FUSE(Hanging(sys.argv[2]), sys.argv[1], foreground=True, nothreads=False, fsname="hang")
