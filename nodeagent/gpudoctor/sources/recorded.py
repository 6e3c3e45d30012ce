"""What `--from` takes: bundles, Kubernetes dumps and logs, several at once, as one bundle."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.sources import bundle
from gpudoctor.sources.bundle import Bundle, Scope
from gpudoctor.sources.text import HEAD_BYTES, as_utf8, open_input

LOOSE_LOG = "?/"
"""Prefix of the key of a log that came as a file of its own: whose it is, the reader knows."""
_MAX_NULS = 20
"""A log may hold a block of NUL bytes where a machine lost power: one byte in so many is text."""


def load(names: Iterable[str]) -> Bundle:
    """Read the files (`-` is standard input) and put them together.

    The whole is complete only if each part is. A text that is neither bundle nor dump is a log.
    """
    parts = [_read(name) for name in names]
    if len(parts) == 1:
        return parts[0]
    complete = all(part.scope.objects == "complete" for part in parts if part.objects)
    return Bundle(
        now=max((part.now for part in parts if part.now), default=None),
        scope=Scope(
            objects="complete" if complete else "partial",
            denied=tuple(denied for part in parts for denied in part.scope.denied),
            roots=tuple(root for part in parts for root in part.scope.roots),
            complete_kinds=_common_kinds(parts),
        ),
        objects=tuple(raw for part in parts for raw in part.objects),
        logs={key: text for part in parts for key, text in part.logs.items()},
        hosts={name: host for part in parts for name, host in part.hosts.items()},
    )


def _common_kinds(parts: list[Bundle]) -> tuple[str, ...]:
    """Kinds that each part with objects read whole."""
    kinds = [set(part.scope.complete_kinds) for part in parts if part.objects]
    return tuple(sorted(set.intersection(*kinds))) if kinds else ()


def _read(name: str) -> Bundle:
    with open_input(name) as text:
        raw = text.read()
    if bundle.is_bundle(raw):
        return bundle.decode(raw, text.name)
    raw = as_utf8(raw)
    head = raw[:HEAD_BYTES]
    if _is_dump(head):
        from gpudoctor.sources.kubernetes import documents  # imported late: bundles need none of it

        return Bundle(objects=documents.read_objects(raw, text.name))
    if not raw.strip():
        raise InputError(f"{text.name}: it is empty; give a bundle, a kubectl dump or a log")
    if head.count(b"\0") * _MAX_NULS > len(head):
        raise InputError(f"{text.name}: binary data; give a bundle, a kubectl dump or a log")
    from gpudoctor.sources.kubernetes import documents

    documents.refuse_printed_text(raw, text.name)
    return Bundle(logs={LOOSE_LOG + PurePath(text.name).name: raw.decode("utf-8", "replace")})


def _is_dump(head: bytes) -> bool:
    """JSON, or YAML with the two fields that each Kubernetes object has."""
    start = head.lstrip(b" \t\r\n")
    return start.startswith((b"{", b"[")) or (b"apiVersion:" in head and b"kind:" in head)


def with_log_of(recorded: Bundle, key: str) -> Bundle:
    """Give the loose logs to a container: `key` is namespace/pod/container."""
    loose = [name for name in recorded.logs if name.startswith(LOOSE_LOG)]
    if not loose:
        return recorded
    kept = {name: text for name, text in recorded.logs.items() if name not in loose}
    kept[key] = "\n".join([kept.get(key, ""), *(recorded.logs[name] for name in loose)]).lstrip()
    return msgspec.structs.replace(recorded, logs=kept)
