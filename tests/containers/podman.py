"""Real containers by podman and runc, made of this machine's own files: nothing is downloaded.

The root file system is an empty directory with the machine's /usr and libraries, this checkout
and its Python mounted read-only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests import parts

ROOT = Path(__file__).parents[2]
PLENTY_S = 90
_EMPTY = ("usr", "bin", "lib", "lib64", "proc", "sys", "dev", "tmp", "etc", "run", "var", "root")


def missing() -> str | None:
    """Return why containers cannot be run here, None if they can."""
    tools = [tool for tool in ("podman", "runc") if shutil.which(tool) is None]
    if tools:
        return f"no {' and no '.join(tools)}"
    return None if os.getuid() == 0 else "podman with device nodes needs root"


def require() -> None:
    """Skip where containers cannot be run, but fail where CI must have them."""
    why = missing()
    if why is not None:
        parts.missing(f"containers: {why}")


class Answer(NamedTuple):
    status: int
    report: dict[str, Any]
    message: str

    @property
    def roots(self) -> list[str]:
        roots: list[str] = self.report["roots"]
        return roots


class Podman:
    """Runs `gpudoctor preflight` in containers whose state lies under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rootfs = folder / "rootfs"
        for name in _EMPTY:
            (self._rootfs / name).mkdir(parents=True)

    def preflight(self, needs: str, *options: str) -> Answer:
        """Run it with podman's `options`; the termination log is a bind mount, as the kubelet's."""
        log = self._folder / "termination-log"
        log.write_bytes(b"")
        log.chmod(0o666)  # as the kubelet makes it: the container may run as anybody
        ended = subprocess.run(
            [
                "podman", "--root", str(self._folder / "root"),
                "--runroot", str(self._folder / "run"), "--storage-driver", "vfs",
                "run", "--rm", "--runtime=runc", "--network=none", "--cgroups=enabled",
                "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
                *self._mounts(), "-v", f"{log}:/dev/termination-log", *options,
                "--rootfs", str(self._rootfs),
                sys.executable, "-m", "gpudoctor", "preflight", "-o", "json", "--require", needs,
            ],
            capture_output=True, timeout=PLENTY_S, check=False,
        )  # fmt: skip
        assert ended.stdout, ended.stderr.decode()
        return Answer(ended.returncode, json.loads(ended.stdout), log.read_text(encoding="utf-8"))

    @staticmethod
    def _mounts() -> list[str]:
        folders = {Path("/usr"), Path("/bin"), Path("/lib"), Path("/lib64"), ROOT}
        folders |= {Path(sys.prefix), Path(sys.base_prefix).resolve()}
        outer = [
            folder
            for folder in sorted(folders)
            if folder.exists() and not any(other in folder.parents for other in folders)
        ]
        return [word for folder in outer for word in ("-v", f"{folder}:{folder}:ro")]
