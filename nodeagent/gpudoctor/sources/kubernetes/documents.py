"""Kubernetes objects out of what people have at hand: `kubectl get -o json|yaml` and the like.

JSON objects, Lists of any kind, JSON lines or documents one after another, YAML with one or many
documents. Each object is handed on as its JSON text (`msgspec.Raw`), so that a dump of a whole
cluster is split without building its tree; only YAML has to be read through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from gpudoctor.errors import InputError
from gpudoctor.sources.text import as_utf8

_CHUNK_BYTES = 1 << 20
_BLANKS = b" \t\r\n"
_AT_BYTE = re.compile(r"^(?:JSON is malformed: )?(?P<what>.*) \(byte (?P<byte>\d+)\)$")
_BETWEEN = re.compile(rb"(?:---)?[ \t\r\n]*")
_TRAILING = "trailing characters"
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_TABLE = re.compile(rb"\s*(?:NAMESPACE +)?(?:LAST SEEN|NAME) +[A-Z][A-Z() -]*\r?(?:\n|$)")
_DESCRIBE = re.compile(rb"\s*Name: +\S[^\n]*\n(?:Namespace|Roles|Labels|Priority):")
_KUBECTL_ERROR = re.compile(
    rb"\s*(?:Error from server|error: |No resources found|Unable to connect to the server|"
    rb"The connection to the server)"
)
_NEXT_STEP = "give what `kubectl get … -o yaml` or `-o json` prints"


class _Head(msgspec.Struct):
    """The fields that tell what a JSON document is; the rest is skipped unread."""

    kind: Any = None
    apiVersion: Any = None  # noqa: N815 - the API's name
    items: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    message: Any = None


def read_objects(raw: bytes, name: str) -> tuple[msgspec.Raw, ...]:
    """Split the content of a file into Kubernetes objects, Lists taken apart.

    Numbers stay as they are written, also where the API has strings. Items of a list such as
    PodList get the kind and apiVersion that the API leaves out of them. `name` is the file's in
    messages. InputError says what is wrong, in which line, and what to do.
    """
    raw = as_utf8(raw)
    _refuse_other_text(raw, name)
    if raw.lstrip(_BLANKS)[:1] in (b"{", b"["):
        documents = _json_documents(raw, name)
    else:
        from gpudoctor.sources.kubernetes.yaml_documents import yaml_documents

        documents = yaml_documents(raw, name)
    return tuple(found for document in documents for found in _objects(document, name))


def _refuse_other_text(raw: bytes, name: str) -> None:
    """Raise InputError for what is surely not a dump, with the way to get one."""
    if not raw.strip(_BLANKS):
        raise InputError(f"{name}: it is empty; {_NEXT_STEP}")
    head = raw[:_CHUNK_BYTES]
    binary = _BINARY.search(head)
    if binary is not None:
        line = line_of(raw, binary.start())
        raise InputError(f"{name}: line {line}: binary data, not a text; {_NEXT_STEP}")
    refuse_printed_text(raw, name)
    if _KUBECTL_ERROR.match(head):
        said = head.strip(_BLANKS).split(b"\n")[0].decode("utf-8", "replace")
        raise InputError(f"{name}: holds an answer of kubectl, not objects: {said.strip()[:300]}")


def is_table(head: bytes) -> bool:
    """Tell the table that `kubectl get` prints by its header."""
    return _TABLE.match(head) is not None


def refuse_printed_text(raw: bytes, name: str) -> None:
    """Raise InputError for what kubectl prints for people, which `explain` may read."""
    head = raw[:_CHUNK_BYTES]
    if is_table(head):
        raise InputError(f"{name}: it is the table that `kubectl get` prints; {_NEXT_STEP} instead")
    if _DESCRIBE.match(head):
        raise InputError(
            f"{name}: it is `kubectl describe` text: `gpudoctor explain` reads that; "
            f"or {_NEXT_STEP} instead"
        )


def line_of(raw: bytes, offset: int) -> int:
    """Return the line, counted from 1, in which a byte stands."""
    return raw.count(b"\n", 0, offset) + 1


def _json_documents(raw: bytes, name: str) -> Iterator[msgspec.Raw]:
    """Yield the JSON documents that follow each other, on one line each or printed over many."""
    view, start = memoryview(raw), 0
    end: int | None
    while start < len(raw):
        end = len(raw)
        try:
            document = msgspec.json.decode(view[start:], type=msgspec.Raw)
        except RecursionError:
            raise InputError(f"{name}: is nested too deeply for Kubernetes objects") from None
        except msgspec.DecodeError as error:
            at_byte = _AT_BYTE.match(str(error))
            # msgspec names the byte after the first one that it did not expect.
            stop = start + int(at_byte["byte"]) - 1 if at_byte else len(raw)
            end = _next_document(raw, stop)
            if at_byte is None or at_byte["what"] != _TRAILING or end is None:
                raise _malformed(raw, stop, at_byte, error, name) from None
            document = msgspec.Raw(raw[start:stop].strip(_BLANKS))
        yield document
        start = end or len(raw)


def _next_document(raw: bytes, stop: int) -> int | None:
    """Return where the next JSON document begins, None if something else follows."""
    between = _BETWEEN.match(raw, stop)
    begin = between.end() if between else stop
    return begin if begin == len(raw) or raw[begin] in b"{[" else None


def _malformed(
    raw: bytes, stop: int, at_byte: re.Match[str] | None, error: Exception, name: str
) -> InputError:
    if at_byte is None and "truncated" in str(error):
        last = line_of(raw, len(raw.rstrip(_BLANKS)))
        return InputError(
            f"{name}: line {last}: the JSON ends in the middle of an object; was the file cut off?"
        )
    what = at_byte["what"] if at_byte else str(error)
    return InputError(f"{name}: line {line_of(raw, stop)}: not valid JSON: {what}")


def _objects(document: msgspec.Raw, name: str) -> Iterator[msgspec.Raw]:
    """Yield the object, or each object of the list, that a document is."""
    if bytes(memoryview(document)[:1]) == b"[":
        yield from _items(document, _Head(), name)
        return
    head = _head_of(document, name, "a document")
    if head.kind == "Status" and isinstance(head.message, str):
        raise InputError(f"{name}: holds an answer of the API server, not objects: {head.message}")
    if isinstance(head.items, msgspec.Raw) and (head.kind is None or _is_list(head.kind)):
        yield from _items(head.items, head, name)
    elif isinstance(head.kind, str):
        yield document
    else:
        raise InputError(f"{name}: no kind in it, so not a Kubernetes object; {_NEXT_STEP}")


def _is_list(kind: object) -> bool:
    return isinstance(kind, str) and kind.endswith("List")


def _items(items: msgspec.Raw, parent: _Head, name: str) -> Iterator[msgspec.Raw]:
    """Yield the items of a list, with the kind that those of a PodList leave to the list."""
    implied = b""
    if isinstance(parent.kind, str) and parent.kind not in ("List", ""):
        kind = {"apiVersion": parent.apiVersion, "kind": parent.kind.removesuffix("List")}
        implied = msgspec.json.encode(kind)
    try:
        listed = msgspec.json.decode(items, type=list[msgspec.Raw] | None)
    except msgspec.ValidationError:
        raise InputError(f"{name}: the items of a list are not a list; {_NEXT_STEP}") from None
    for number, item in enumerate(listed or ()):
        if bytes(item) == b"null":
            continue
        head = _head_of(item, name, f"items[{number}]")
        if isinstance(head.kind, str):
            # A list in a list: `kubectl get -o json` appended to a List by hand.
            yield from _objects(item, name) if _is_list(head.kind) else (item,)
        elif implied:
            yield _with_kind(item, implied)
        else:
            raise InputError(f"{name}: items[{number}] has no kind, so is not a Kubernetes object")


def _with_kind(item: msgspec.Raw, implied: bytes) -> msgspec.Raw:
    rest = bytes(item).removeprefix(b"{").lstrip(_BLANKS)
    return msgspec.Raw(implied[:-1] + (b"" if rest == b"}" else b",") + rest)


def _head_of(document: msgspec.Raw, name: str, what: str) -> _Head:
    try:
        return msgspec.json.decode(document, type=_Head)
    except msgspec.DecodeError:
        raise InputError(f"{name}: {what} is not a Kubernetes object; {_NEXT_STEP}") from None
