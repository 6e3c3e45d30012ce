"""A picture of some objects that is kept current: one list, then the stream of its changes.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
The stream ends often, and by design: it goes on from the last version that was seen, which
bookmarks keep young. A version that the server no longer has (410) wants a new list. A
connection that died without a word is found by its silence.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import GarbledError, RefusedError, UnreachableError
from gpudoctor.sources.kubernetes.kinds import Kind

STREAM_S = 300
"""How long a stream is asked for; less a random part, so that those of many agents differ."""

SILENCE_S = 120.0
"""After so long without a line a stream is dead: bookmarks come about once a minute."""

_FIRST_DELAY_S = 0.5
_GONE = 410
_AGAIN = frozenset({429, 500, 502, 503, 504})
_MODIFIED = ("ADDED", "MODIFIED")


class _Meta(msgspec.Struct, rename="camel", frozen=True):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()
    code: int = 0
    message: str = ""


class _Change(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


T = TypeVar("T")


class Picture:
    """The objects of a kind that a field selector selects, kept by a thread in `run`.

    With `metadata_only` they are PartialObjectMetadata. `keep` makes what is kept of an object, as
    to save memory: its `metadata.uid` at least. `changed` is called after a change, in that
    thread. `most_delay_s` bounds the wait between two tries.
    """

    def __init__(
        self,
        client: Client,
        kind: Kind,
        fields: str,
        *,
        metadata_only: bool = False,
        keep: Callable[[msgspec.Raw], msgspec.Raw] = lambda raw: raw,
        changed: Callable[[], None] = lambda: None,
        most_delay_s: float = 30.0,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._client = client
        self._kind = kind
        self._fields = fields
        self._metadata_only = metadata_only
        self._keep = keep
        self._changed = changed
        self._most_delay_s = most_delay_s
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._objects: dict[str, msgspec.Raw] = {}
        self._version = ""
        self._failure = "not listed yet"
        self._failing_since: float | None = time.monotonic()

    def objects(self) -> tuple[msgspec.Raw, ...]:
        """Return the objects as last seen."""
        with self._lock:
            return tuple(self._objects.values())

    def failing(self) -> tuple[str, float] | None:
        """Return why the picture may be old and for how many seconds; None while it is current."""
        with self._lock:
            if self._failing_since is None:
                return None
            return self._failure, time.monotonic() - self._failing_since

    def run(self, stop: threading.Event) -> None:
        """Keep the picture until `stop` is set; never raises."""
        delay = _FIRST_DELAY_S
        while not stop.is_set():
            started = time.monotonic()
            try:
                self._follow(stop)
                failed = ""
            except Exception as error:  # noqa: BLE001 - an odd object must not end the thread
                failed = str(error) or type(error).__name__
                self._fail(error, failed)
            # A stream that ends at once, again and again, must not become a busy loop either.
            calm = not failed and time.monotonic() - started > self._most_delay_s / 2
            delay = _FIRST_DELAY_S if calm else min(delay * 2, self._most_delay_s)
            if not calm:
                stop.wait(delay * random.uniform(0.5, 1.0))  # noqa: S311 - no secret

    def _follow(self, stop: threading.Event) -> None:
        """List where there is no version to go on from, then apply one stream of changes."""
        if not self._version:
            self._list()
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(STREAM_S // 2, STREAM_S)),  # noqa: S311
            "fieldSelector": self._fields,
        }
        only = self._metadata_only
        for lines in self._client.lines(self._kind, query, self._silence_s, metadata_only=only):
            self._well()
            for line in filter(None, lines):
                self._apply(line)
            if lines:
                self._changed()
            if stop.is_set():
                return

    def _list(self) -> None:
        listing = self._client.list(
            self._kind, fields=self._fields, metadata_only=self._metadata_only, keep=self._keep
        )
        objects = {self._of(kept).metadata.uid: kept for kept in listing.objects}
        with self._lock:
            self._objects = objects
            self._version = listing.version
        self._well()
        self._changed()

    def _apply(self, line: bytes) -> None:
        change = self._decoded(line, _Change)
        found = self._of(change.object)
        if change.type == "ERROR":
            raise RefusedError(
                f"{self._client.server}: watch {self._kind.resource}: {found.message}", found.code
            )
        with self._lock:
            if change.type in _MODIFIED:
                self._objects[found.metadata.uid] = self._keep(change.object)
            elif change.type == "DELETED":
                self._objects.pop(found.metadata.uid, None)
            self._version = found.metadata.resource_version or self._version

    def _well(self) -> None:
        with self._lock:
            self._failing_since = None

    def _fail(self, error: Exception, failed: str) -> None:
        """Note the failure; where it was not mere reachability, a new list is due."""
        passing = isinstance(error, UnreachableError) or (
            isinstance(error, RefusedError) and error.status in _AGAIN
        )
        gone = isinstance(error, RefusedError) and error.status == _GONE
        with self._lock:
            if not passing:
                self._version = ""
            if not gone and self._failing_since is None:
                self._failing_since = time.monotonic()
            self._failure = failed

    def _of(self, raw: msgspec.Raw) -> _Object:
        return self._decoded(raw, _Object)

    def _decoded(self, raw: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise GarbledError(f"{self._client.server}: not a watch event: {error}") from error
