"""Keeps what is read from a host, in the form of a bundle, so that it can be read again later."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from typing import Any

from gpudoctor.sources import environment
from gpudoctor.sources.host import (
    TIMED_OUT,
    DeviceNode,
    Host,
    Listing,
    Missing,
    Space,
    lock_key,
    space_key,
)

_ENVIRON = re.compile(r"^/proc/[^/]+/environ$")
_DENIED = ("EACCES", "EPERM")


class Recorder:
    """A host that passes every call on once and remembers the answers in `tree`.

    A recording holds one answer to a question, so what is asked again in a reading is answered
    from it: the facts of a live machine are those of its recording, and it is asked less.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._missed: dict[tuple[str, str], Missing] = {}
        self.tree: dict[str, Any] = {}

    def _known(self, op: str, path: str) -> bytes | Listing | str | Missing | None:
        """Return the answer to a question that was asked before, None for a new one."""
        entry = self.tree.get(path)
        if op == "read" and isinstance(entry, str):
            return entry.encode()
        if isinstance(entry, dict):
            if op == "read" and "b64" in entry:
                return base64.b64decode(entry["b64"])
            if op == "list" and "dir" in entry:
                return Listing(tuple(entry["dir"]), True)
            if op == "link" and "link" in entry:
                return str(entry["link"])
        return self._missed.get((op, path))

    def _keep(self, path: str, entry: Any) -> None:
        known = self.tree.get(path)
        if known is None or (isinstance(known, dict) and "errno" in known):
            self.tree[path] = entry

    def _keep_missing(self, path: str, missing: Missing, op: str = "") -> None:
        if op:
            self._missed[op, path] = missing
        self._keep(
            path, {"errno": missing.errno} | ({"note": missing.note} if missing.note else {})
        )

    def note(self, command: str, printed: str) -> None:
        """Remember what something other than the host printed, as if a command had."""
        self._keep(f"cmd:{command}", printed)

    def read_bytes(self, path: str) -> bytes | Missing:
        """Read and remember a file; of an environment only what may be read."""
        known = self._known("read", path)
        if isinstance(known, bytes | Missing):
            return known
        content = self._host.read_bytes(path)
        if isinstance(content, Missing):
            self._keep_missing(path, content, "read")
            return content
        if _ENVIRON.match(path):
            content = environment.encode(environment.allowed(content))
        try:
            self._keep(path, content.decode("utf-8"))
        except UnicodeDecodeError:
            self._keep(path, {"b64": base64.b64encode(content).decode("ascii")})
        return content

    def expect(
        self, reads: Iterable[str], *, lists: Iterable[str] = (), links: Iterable[str] = ()
    ) -> None:
        """Pass it on; what is then read is remembered."""
        self._host.expect(
            (path for path in reads if self._known("read", path) is None),
            lists=(path for path in lists if self._known("list", path) is None),
            links=(path for path in links if self._known("link", path) is None),
        )

    def listing(self, path: str) -> Listing | Missing:
        """List and remember a directory; an incomplete listing is not remembered as a whole."""
        known = self._known("list", path)
        if isinstance(known, Listing | Missing):
            return known
        found = self._host.listing(path)
        if isinstance(found, Missing):
            self._keep_missing(path, found, "list")
        elif found.complete:
            self._keep(path, {"dir": list(found.names)})
        return found

    def target(self, path: str) -> str | Missing:
        """Read and remember a symbolic link."""
        known = self._known("link", path)
        if isinstance(known, str | Missing):
            return known
        found = self._host.target(path)
        if isinstance(found, Missing):
            self._keep_missing(path, found, "link")
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
