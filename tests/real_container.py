"""Real containers by podman and runc, on a root made from this machine's own /usr.

Nothing is pulled: the root holds empty mount points and links into /usr, which is mounted with
this checkout and its interpreter. Limits are low enough for a root without CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import parts

CHECKOUT = Path(__file__).parent.parent
_EMPTY = ("dev", "etc", "proc", "run", "sys", "tmp", "usr")
_INTO_USR = ("bin", "lib", "lib64", "sbin")
_CHECK = ("-m", "gpudoctor", "check", "-o", "json")
_NOT_STARTED = (125, 126, 127)
"""How podman ends when it could not start the container or the command in it."""
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


class Podman:
    """Podman with a store of its own in `folder`, which is gone with it."""

    def __init__(self, folder: Path) -> None:
        parts.program("runc", "runc")
        self._podman = [
            parts.program("podman", "podman"),
            f"--root={folder}/store",
            f"--runroot={folder}/run",
            "--storage-driver=vfs",  # others leave a mount behind
            "--cgroup-manager=cgroupfs",
        ]
        self._root = folder / "root"
        for name in _EMPTY:
            (self._root / name).mkdir(parents=True)
        for name in _INTO_USR:
            (self._root / name).symlink_to(f"usr/{name}")

    def _run(self, *options: str, command: tuple[str, ...]) -> list[str]:
        shown = {"/usr", str(CHECKOUT), sys.prefix, sys.base_prefix}
        volumes = [f"--volume={path}:{path}:ro" for path in sorted(shown)]
        return [
            *self._podman, "run", "--runtime=runc", "--network=none", *_LIMITS, *volumes,
            *options, "--rootfs", str(self._root), *command,
        ]  # fmt: skip

    def put(self, path: str) -> None:
        """Put a page of zeros at a path of the containers' root."""
        place = self._root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(4096))

    @contextlib.contextmanager
    def container(
        self, *options: str, command: tuple[str, ...] = ("sleep", "1000")
    ) -> Iterator[str]:
        """Run a container that waits, and yield its id."""
        started = subprocess.run(
            self._run("--detach", *options, command=command),
            capture_output=True,
            text=True,
            check=False,
        )
        if started.returncode:
            parts.missing(f"a podman that can run containers: {started.stderr.strip()[-200:]}")
        identity = started.stdout.strip()
        try:
            yield identity
        finally:
            subprocess.run(
                [*self._podman, "rm", "--force", "--time=0", identity],
                check=True,
                capture_output=True,
            )

    def check_inside(self, *options: str) -> dict[str, Any]:
        """Run `gpudoctor check` as the container's first process and return its report."""
        report = json.loads(self.python(*options, arguments=_CHECK))
        assert isinstance(report, dict)
        return report

    def python(self, *options: str, arguments: tuple[str, ...]) -> str:
        """Run this interpreter as the container's first process and return what it printed."""
        return self.end_of_python(*options, arguments=arguments).stdout

    def end_of_python(
        self, *options: str, arguments: tuple[str, ...]
    ) -> subprocess.CompletedProcess[str]:
        """Run this interpreter as the container's first process and return how it ended."""
        ended = subprocess.run(
            self._run("--rm", *options, command=(sys.executable, *arguments)),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode in _NOT_STARTED:
            parts.missing(f"a podman that can run containers: {ended.stderr.strip()[-200:]}")
        return ended
