"""Writes a bundle: `bundle.json` in a .tar.gz with a manifest of what was read and what was not."""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.sources.bundle import Bundle

_MODE = 0o600
_ARCHIVES, _JSON = (".tar.gz", ".tgz"), ".json"


def manifest(bundle: Bundle) -> dict[str, Any]:
    """Return what the bundle holds: per host the paths that were read and those that were not."""
    return {
        "now": bundle.now,
        "objects": len(bundle.objects),
        "logs": sorted(bundle.logs),
        "denied": list(bundle.scope.denied),
        "hosts": {
            name: {
                "read": sorted(path for path, entry in host.tree.items() if not _error(entry)),
                "not_read": {
                    path: error
                    for path, entry in sorted(host.tree.items())
                    if (error := _error(entry))
                },
            }
            for name, host in bundle.hosts.items()
        },
    }


def _error(entry: Any) -> str | None:
    return str(entry["errno"]) if isinstance(entry, dict) and "errno" in entry else None


def encode(bundle: Bundle) -> bytes:
    """Return the .tar.gz of a bundle."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in (
            ("bundle.json", msgspec.json.encode(bundle)),
            ("manifest.json", msgspec.json.format(msgspec.json.encode(manifest(bundle)), indent=1)),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = _MODE
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def check(path: str) -> None:
    """Raise InputError for a path that is no place for a bundle, before the work of recording."""
    if not path.endswith((*_ARCHIVES, _JSON)):
        raise InputError(f"{path}: the name of a bundle ends in {_ARCHIVES[0]} or {_JSON}")
    if os.path.lexists(path):
        raise InputError(f"{path}: is there already and is not overwritten; give another name")


def write(bundle: Bundle, path: str) -> None:
    """Write a bundle to a new file that only its owner can read: JSON if so named, else .tar.gz."""
    content = msgspec.json.encode(bundle) if path.endswith(_JSON) else encode(bundle)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error
