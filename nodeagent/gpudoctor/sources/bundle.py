"""The bundle: everything a diagnosis read, as raw text, so that it can be replayed anywhere.

Schema `gpudoctor.io/bundle/v1`: one JSON document, or a .tar.gz that holds `bundle.json` and
large texts as files beside it (a log or file content is then `{"file": "path in the archive"}`).
What is absent inside the scope does not exist; what is absent outside it is unknown.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gpudoctor import PREFIX
from gpudoctor.errors import InputError

SCHEMA = f"{PREFIX}/bundle/v1"
_ARCHIVE_MEMBER = "bundle.json"
_GZIP_MAGIC = b"\x1f\x8b"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_MAX_MEMBER_BYTES = 1 << 30
_UNREADABLE = (OSError, EOFError, zlib.error)


MEMBERS = "members of the job"
"""Among `complete_kinds`: all pods that bear the label of the subject's job."""


class Scope(msgspec.Struct, frozen=True):
    """How far the reading went: `denied` are refused requests, `roots` host trees read whole.

    `complete_kinds` are kinds ("Node", "Pod") of which every object that matters to the subject
    was read although the whole is partial, as when a live reading asks only for what it needs.
    """

    objects: Literal["complete", "partial"] = "partial"
    denied: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    complete_kinds: tuple[str, ...] = ()


class HostRecording(msgspec.Struct, frozen=True):
    """One host's files and command outputs, keyed by absolute path or `cmd:<command line>`.

    Beside these stand `space:<path>` {"size": bytes, "free": bytes} of a file system, and
    `lock:<bytes>`, the errno of a try to lock memory ("" for success).

    A value is text, or one of {"link": target}, {"errno": NAME}, {"char": [major, minor], …},
    {"b64": base64}, {"dir": [names]}. `tree_later` is a second observation of some of them.
    """

    tree: dict[str, Any] = {}
    tree_later: dict[str, Any] = {}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle. `objects` stay undecoded until they are asked for; `logs` are keyed
    `namespace/pod/container`, with `!previous` after it for the container before the restart.
    """

    schema: str = SCHEMA
    now: str | None = None
    scope: Scope = Scope()
    objects: tuple[msgspec.Raw, ...] = ()
    logs: dict[str, str] = {}
    hosts: dict[str, HostRecording] = {}


def is_bundle(raw: bytes) -> bool:
    """Tell a bundle (JSON or archive) from the other things people have at hand."""
    return _is_archive(raw) or SCHEMA.encode() in raw[:4096]


def _is_archive(raw: bytes) -> bool:
    return raw.startswith(_GZIP_MAGIC) or raw[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC)


def decode(raw: bytes, name: str) -> Bundle:
    """Decode a bundle file's bytes; InputError (with `name`) says what is wrong with it."""
    try:
        if _is_archive(raw):
            raw = _from_archive(raw)
        bundle = msgspec.json.decode(raw, type=Bundle)
    except (*_UNREADABLE, KeyError, msgspec.MsgspecError) as error:
        raise InputError(f"{name}: not a usable bundle: {error}") from error
    if bundle.schema != SCHEMA:
        raise InputError(f"{name}: bundle schema {bundle.schema!r}, this version reads {SCHEMA!r}")
    return bundle


def _from_archive(raw: bytes) -> bytes:
    """Return the archive's bundle.json with `{"file": …}` texts put back in place."""
    if raw.startswith(_GZIP_MAGIC):
        import gzip  # imported late: few bundles are archives

        raw = gzip.decompress(raw)
    files = dict(_files(raw))
    document = files.pop(_ARCHIVE_MEMBER, None)
    if document is None:
        raise KeyError(f"the archive holds no {_ARCHIVE_MEMBER}")
    texts = {path: content.decode("utf-8", "replace") for path, content in files.items()}
    return msgspec.json.encode(_with_texts(msgspec.json.decode(document), texts))


def _files(archive: bytes) -> Iterator[tuple[str, bytes]]:
    import tarfile  # imported late: it brings every compressor with it

    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for member in opened:
                stream = opened.extractfile(member) if member.isfile() else None
                if stream is not None and member.size <= _MAX_MEMBER_BYTES:
                    yield member.name.removeprefix("./"), stream.read()
    except tarfile.TarError as error:
        raise OSError(f"damaged archive: {error}") from error


def _with_texts(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"file"}:
            return texts[value["file"]]
        return {key: _with_texts(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_texts(item, texts) for item in value]
    return value
