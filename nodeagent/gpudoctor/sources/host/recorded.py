"""A host from a bundle: answers from the recorded tree exactly what was read then."""

from __future__ import annotations

import base64
import binascii
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from gpudoctor.sources.host import UNREAD, DeviceNode, Listing, Missing, Space, lock_key, space_key

_MOST_LINKS = 40
_COMMAND = "cmd:"


class RecordedHost:
    """A recorded tree (design of `HostRecording`): path -> content, link, errno, device, listing.

    Outside `roots`, the trees that were recorded whole, a path without an entry was not looked
    at. A `{"dir": …}` entry is a whole listing, so what it does not name does not exist.
    """

    def __init__(self, tree: Mapping[str, Any], roots: Iterable[str] = ()) -> None:
        self._tree = tree
        self._roots = tuple(root.rstrip("/") + "/" for root in roots)
        self._children: dict[str, set[str]] = {}
        for path in tree:
            if path.startswith("/"):
                self._note_parents(path)

    def _note_parents(self, path: str) -> None:
        while path != "/":
            path, name = posixpath.split(path)
            children = self._children.setdefault(path, set())
            if name in children:
                return
            children.add(name)

    def _find(self, path: str) -> tuple[str, Any]:
        """Return the path at which an entry stands, after following links, and the entry.

        An entry under the very path that was asked for wins over one behind a link. Without an
        entry the second is a `Missing`, or None for a directory known only by its children.
        """
        path = _absolute(path)
        for _ in range(_MOST_LINKS):
            entry = self._tree.get(path)
            if not _is_link(entry):
                if entry is not None:
                    return path, entry
                if path in self._children:
                    return path, None
            followed = self._follow(path)
            if followed is None:
                return path, None if path in self._children else self._absence(path)
            path = followed
        return path, Missing("ELOOP")

    def _follow(self, path: str) -> str | None:
        """Replace the longest prefix that is a link by its target; None if there is no link."""
        prefix = path
        while prefix not in ("/", ""):
            entry = self._tree.get(prefix)
            if _is_link(entry):
                base = posixpath.dirname(prefix)
                target = posixpath.join(base, str(entry["link"]))
                return _absolute(f"{target}/{path[len(prefix) :]}")
            prefix = posixpath.dirname(prefix)
        return None

    def _absence(self, path: str) -> Missing:
        if path.startswith(self._roots):
            return Missing("ENOENT")
        name = path
        while name != "/":
            parent, base = posixpath.split(name)
            entry = self._tree.get(parent)
            if isinstance(entry, dict):
                if "errno" in entry:
                    return Missing(str(entry["errno"]))
                if "dir" in entry and base not in entry["dir"]:
                    return Missing("ENOENT")
            name = parent
        return Missing(UNREAD)

    def read_bytes(self, path: str) -> bytes | Missing:
        """Return a recorded file's content."""
        _, entry = self._find(path)
        if isinstance(entry, str):
            return entry.encode("utf-8", "surrogateescape")
        if isinstance(entry, dict) and "b64" in entry:
            try:
                return base64.b64decode(str(entry["b64"]), validate=False)
            except (binascii.Error, ValueError):
                return Missing("EIO", "the recording holds broken base64")
        return _missing(entry) or Missing("EISDIR")

    def expect(
        self, reads: Iterable[str], *, lists: Iterable[str] = (), links: Iterable[str] = ()
    ) -> None:
        """All is at hand."""

    def listing(self, path: str) -> Listing | Missing:
        """Return a recorded listing, or the names that the recording knows of."""
        found, entry = self._find(path)
        missing = _missing(entry)
        if missing is not None:
            return missing
        known = set(self._children.get(found, ())) | set(self._children.get(_absolute(path), ()))
        if isinstance(entry, dict) and isinstance(entry.get("dir"), list):
            return Listing(tuple(sorted(known | {str(name) for name in entry["dir"]})), True)
        if entry is not None:
            return Missing("ENOTDIR")
        complete = (found + "/").startswith(self._roots)
        return Listing(tuple(sorted(known)), complete)

    def target(self, path: str) -> str | Missing:
        """Return a recorded link's target."""
        path = _absolute(path)
        for _ in range(_MOST_LINKS):
            entry = self._tree.get(path)
            if _is_link(entry):
                return str(entry["link"])
            if entry is not None:
                return _missing(entry) or Missing("EINVAL")
            parent = self._follow(posixpath.dirname(path))
            if parent is None:
                return self._absence(path)
            path = _absolute(f"{parent}/{posixpath.basename(path)}")
        return Missing("ELOOP")

    def device(self, path: str) -> DeviceNode | Missing:
        """Return a recorded device node."""
        _, entry = self._find(path)
        if isinstance(entry, dict) and "char" in entry:
            try:
                major, minor = (int(part) for part in entry["char"])
                return DeviceNode(
                    major=major,
                    minor=minor,
                    mode=int(str(entry.get("mode", "0")), 8),
                    uid=int(entry.get("uid", 0)),
                    gid=int(entry.get("gid", 0)),
                    opened=entry.get("opened"),
                )
            except (TypeError, ValueError):
                return Missing("EIO", "the recording holds a broken device")
        return _missing(entry) or Missing("ENODEV", "not a character device")

    def space(self, path: str) -> Space | Missing:
        """Return the recorded size and free bytes of a file system."""
        entry = self._tree.get(space_key(path))
        if isinstance(entry, dict) and "errno" not in entry:
            try:
                return Space(int(entry["size"]), int(entry["free"]))
            except (KeyError, TypeError, ValueError):
                return Missing("EIO", "the recording holds a broken size")
        return _missing(entry) or Missing(UNREAD)

    def try_lock(self, size: int) -> str | Missing:
        """Return how the try to lock so many bytes ended when the bundle was recorded."""
        entry = self._tree.get(lock_key(size))
        return entry if isinstance(entry, str) else _missing(entry) or Missing(UNREAD)

    def run(self, command: Sequence[str]) -> str | Missing:
        """Return what the command printed when the bundle was recorded."""
        entry = self._tree.get(_COMMAND + " ".join(command))
        if isinstance(entry, str):
            return entry
        return _missing(entry) or Missing(UNREAD)


def _is_link(entry: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(entry, dict) and "link" in entry


def _missing(entry: Any) -> Missing | None:
    if isinstance(entry, Missing):
        return entry
    if isinstance(entry, dict) and "errno" in entry:
        return Missing(str(entry["errno"]), str(entry.get("note", "")))
    return None


def _absolute(path: str) -> str:
    """Normalise to one leading slash: POSIX lets two stand, where walking up never ends."""
    return posixpath.normpath("/" + path.lstrip("/"))
