"""Keeps what is read from a host, in the form of a bundle, so that it can be read again later."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gpudoctor.sources.host import (
    TIMED_OUT,
    DeviceNode,
    Host,
    Listing,
    Missing,
    Space,
    environment,
    lock_key,
    space_key,
)

_ENVIRON = re.compile(r"^/proc/[^/]+/environ$")
_DENIED = ("EACCES", "EPERM")


class Recorder:
    """A host that passes every call on and remembers the answers in `tree`."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.tree: dict[str, Any] = {}

    def _keep(self, path: str, entry: Any) -> None:
        known = self.tree.get(path)
        if known is None or (isinstance(known, dict) and "errno" in known):
            self.tree[path] = entry

    def _keep_missing(self, path: str, missing: Missing) -> None:
        self._keep(
            path, {"errno": missing.errno} | ({"note": missing.note} if missing.note else {})
        )

    def note(self, command: str, printed: str) -> None:
        """Remember what something other than the host printed, as if a command had."""
        self._keep(f"cmd:{command}", printed)

    def read_bytes(self, path: str) -> bytes | Missing:
        """Read and remember a file; of an environment only what may be read."""
        content = self._host.read_bytes(path)
        if isinstance(content, Missing):
            self._keep_missing(path, content)
            return content
        if _ENVIRON.match(path):
            content = environment.encode(environment.allowed(content))
        try:
            self._keep(path, content.decode("utf-8"))
        except UnicodeDecodeError:
            self._keep(path, {"b64": base64.b64encode(content).decode("ascii")})
        return content

    def expect(self, paths: Iterable[str]) -> None:
        """Pass it on; what is then read is remembered."""
        self._host.expect(paths)

    def listing(self, path: str) -> Listing | Missing:
        """List and remember a directory; an incomplete listing is not remembered as a whole."""
        found = self._host.listing(path)
        if isinstance(found, Missing):
            self._keep_missing(path, found)
        elif found.complete:
            self._keep(path, {"dir": list(found.names)})
        return found

    def target(self, path: str) -> str | Missing:
        """Read and remember a symbolic link."""
        found = self._host.target(path)
        if isinstance(found, Missing):
            self._keep_missing(path, found)
        else:
            self._keep(path, {"link": found})
        return found

    def device(self, path: str) -> DeviceNode | Missing:
        """Look at and remember a device node."""
        found = self._host.device(path)
        if isinstance(found, Missing):
            self._keep_missing(path, found)
            return found
        entry: dict[str, Any] = {
            "char": [found.major, found.minor],
            "mode": f"{found.mode:04o}",
            "uid": found.uid,
            "gid": found.gid,
        }
        if found.opened is not None:
            entry["opened"] = found.opened
        self._keep(path, entry)
        return found

    def space(self, path: str) -> Space | Missing:
        """Measure and remember a file system."""
        found = self._host.space(path)
        if isinstance(found, Missing):
            self._keep_missing(space_key(path), found)
        else:
            self._keep(space_key(path), {"size": found.size, "free": found.free})
        return found

    def try_lock(self, size: int) -> str | Missing:
        """Try to lock memory and remember how that ended."""
        found = self._host.try_lock(size)
        if isinstance(found, Missing):
            self._keep_missing(lock_key(size), found)
        else:
            self._keep(lock_key(size), found)
        return found

    def run(self, command: Sequence[str]) -> str | Missing:
        """Run a command and remember what it printed."""
        found = self._host.run(command)
        path = "cmd:" + " ".join(command)
        if isinstance(found, Missing):
            self._keep_missing(path, found)
        else:
            self._keep(path, found)
        return found

    def stuck(self) -> tuple[str, ...]:
        """Return the paths and commands that did not answer in time."""
        return self._with_errno((TIMED_OUT,))

    def refused(self) -> tuple[str, ...]:
        """Return the paths that this user may not read."""
        return self._with_errno(_DENIED)

    def _with_errno(self, errnos: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            path
            for path, entry in self.tree.items()
            if isinstance(entry, dict) and entry.get("errno") in errnos
        )
