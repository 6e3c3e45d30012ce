"""One host or container, live or recorded: its files, links, device nodes and commands.

Every fact about a machine is read through `Host`, so that a live reading can be recorded and
replayed elsewhere. What cannot be read comes back as `Missing`, with the reason: only ENOENT
inside what was looked at means that something does not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

UNREAD = "UNREAD"
"""The errno of a path that a recording does not hold: nobody looked, so nothing is known."""

TIMED_OUT = "ETIMEDOUT"
"""The errno of a call that did not come back within its bound."""

_ABSENT = frozenset({"ENOENT", "ENOTDIR", "ENODEV", "ENXIO"})
_DENIED = frozenset({"EACCES", "EPERM"})


class Missing(msgspec.Struct, frozen=True):
    """Why something could not be read: an errno name, and what more is known."""

    errno: str
    note: str = ""

    @property
    def absent(self) -> bool:
        """Whether it is known not to exist."""
        return self.errno in _ABSENT

    @property
    def why(self) -> str:
        """The reason in words."""
        if self.errno == UNREAD:
            return "not in the recording"
        if self.errno in _DENIED:
            words = f"denied ({self.errno})"
        elif self.errno == TIMED_OUT:
            words = "did not answer in time"
        else:
            words = "does not exist" if self.absent else f"cannot be read ({self.errno})"
        return f"{words}: {self.note}" if self.note else words


class Listing(msgspec.Struct, frozen=True):
    """Names in a directory, sorted; `complete` unless a recording holds only some of them."""

    names: tuple[str, ...]
    complete: bool


class DeviceNode(msgspec.Struct, frozen=True):
    """A character device. `opened` is the errno of opening it read-write, "" for success.

    It is None where nobody tried: the device cgroup of another container cannot be tested.
    """

    major: int
    minor: int
    mode: int
    uid: int
    gid: int
    opened: str | None = None


class Proof(msgspec.Struct, frozen=True):
    """How a try went: what was got of what was wanted, and the errno name, "" for success.

    Sizes are bytes; for a name, `got` is the number of its addresses. `errno` is `SIGBUS` or the
    like where the kernel ended the child, `ETIMEDOUT` where it did not answer.
    """

    wanted: int
    got: int
    errno: str
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether all that was wanted was there."""
        return not self.errno


class Space(msgspec.Struct, frozen=True):
    """A mounted file system: its size and what is free, in bytes."""

    size: int
    free: int


class Host(Protocol):
    """A machine's tree as one process sees it. Paths are absolute; no call raises."""

    def read_bytes(self, path: str) -> bytes | Missing:
        """Return a regular file's content, following links; at most 1 MiB of it."""

    def expect(
        self, reads: Iterable[str], *, lists: Iterable[str] = (), links: Iterable[str] = ()
    ) -> None:
        """Say what will be read, listed and followed next: a live host asks for it in one go."""

    def listing(self, path: str) -> Listing | Missing:
        """Return the names in a directory."""

    def target(self, path: str) -> str | Missing:
        """Return what a symbolic link says, unresolved."""

    def device(self, path: str) -> DeviceNode | Missing:
        """Return the character device at a path."""

    def space(self, path: str) -> Space | Missing:
        """Return how large and how full the file system at a path is."""

    def try_lock(self, size: int) -> str | Missing:
        """Return the errno of locking so many bytes of memory as ourselves, "" for success."""

    def run(self, command: Sequence[str]) -> str | Missing:
        """Return what a command prints; EXIT as errno if it fails."""


def space_key(path: str) -> str:
    """Return where a recording keeps the `Space` at a path: the path itself may be listed too."""
    return f"space:{path}"


def lock_key(size: int) -> str:
    """Return where a recording keeps how a try to lock so many bytes ended."""
    return f"lock:{size}"


def read(host: Host, path: str) -> str | Missing:
    """Return a file's text without surrounding white space."""
    content = host.read_bytes(path)
    return content if isinstance(content, Missing) else content.decode("utf-8", "replace").strip()


def text(host: Host, path: str) -> str | None:
    """Return a file's text without surrounding white space; None for any reason why not."""
    content = read(host, path)
    return None if isinstance(content, Missing) else content


def number(host: Host, path: str) -> int | None:
    """Return a file's decimal number; None if it cannot be read or is none."""
    content = text(host, path)
    try:
        return None if content is None else int(content)
    except ValueError:
        return None


def names(host: Host, path: str) -> tuple[str, ...]:
    """Return the names known to be in a directory; none if it cannot be read."""
    found = host.listing(path)
    return () if isinstance(found, Missing) else found.names
