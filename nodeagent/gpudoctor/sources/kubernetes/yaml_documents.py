"""YAML read as the API server would: by the core schema, with nothing but what JSON has.

Built on libyaml's events and not on PyYAML's constructors: those turn times into dates, and keep
the whole tree of a dump. Here a scalar stays the string or number that JSON would hold, tags are
refused, and what aliases repeat is counted, because the JSON behind them repeats it in full.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from gpudoctor.errors import InputError

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_DEPTH = 100
_MAX_REPEATED_BYTES = 16 << 20
_MERGE = "<<"
_YAML_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {None, "!", *(f"{_YAML_TAG}{kind}" for kind in ("map", "seq", "null", "bool"))}
_NUMBER_TAGS = {f"{_YAML_TAG}int", f"{_YAML_TAG}float"}
_STRING_TAG = f"{_YAML_TAG}str"
_CONSTANTS: dict[str, bool | None] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,2})?")
_OTHER_INT = re.compile(r"[+-]?(?:0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}|[0-9]{1,300})")
_OTHER_FLOAT = re.compile(
    r"[+-]?(?:\.[0-9]{1,300}|[0-9]{1,300}(?:\.[0-9]{0,300})?)(?:[eE][+-]?[0-9]{1,2})?"
)


def yaml_documents(raw: bytes, name: str) -> Iterator[msgspec.Raw]:
    """Yield each document that is not empty as JSON; InputError names the line that is wrong."""
    reader = _Reader(raw, name)
    found = False
    try:
        for document in reader.documents():
            found = True
            yield msgspec.Raw(msgspec.json.encode(document))
    except yaml.YAMLError as error:
        raise reader.unreadable(error) from None
    if not found:
        raise InputError(f"{name}: holds no object, only comments or empty documents")


class _Reader:
    """One pass over the events of a text; an alias refers to the value already built."""

    def __init__(self, raw: bytes, name: str) -> None:
        self._name = name
        self._raw = raw
        self._events: Iterator[Any] = iter(yaml.parse(raw, Loader=_LOADER))
        self._anchors: dict[str, Any] = {}
        self._repeated = 0

    def documents(self) -> Iterator[dict[str, Any] | list[Any]]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                first = next(self._events)
                value = self._value(first, 0)
                if isinstance(value, dict | list):
                    yield value
                elif value is not None:
                    raise self._wrong(first, "a text, not a Kubernetes object")

    def _value(self, event: Any, depth: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._repeat(event)
        if depth > _MAX_DEPTH:
            raise self._wrong(event, "nested too deeply for a Kubernetes object")
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        else:
            if event.tag not in _PLAIN_TAGS:
                raise self._tagged(event)
            is_mapping = isinstance(event, yaml.MappingStartEvent)
            value = self._mapping(depth) if is_mapping else self._sequence(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _repeat(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise self._wrong(event, f"the alias *{event.anchor} has no anchor before it")
        value = self._anchors[event.anchor]
        self._repeated += len(msgspec.json.encode(value))
        if self._repeated > _MAX_REPEATED_BYTES:
            raise self._wrong(event, "aliases repeat too much text; write the dump without them")
        return value

    def _sequence(self, depth: int) -> list[Any]:
        items = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value = self._value(event, depth + 1)
            # At the depth of a List's items, an object is done: its text is smaller than its tree.
            items.append(_packed(value) if depth == 1 and event.anchor is None else value)
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            value_event = next(self._events)
            value = self._value(value_event, depth + 1)
            if key == _MERGE and event.implicit[0]:
                self._merge(merged, value, value_event)
            elif key in own:
                raise self._wrong(event, f"the key {key!r} is there twice in one mapping")
            else:
                own[key] = value
        return {**merged, **own}

    def _key(self, event: Any) -> str:
        if isinstance(event, yaml.AliasEvent):
            value = self._repeat(event)
            if isinstance(value, str):
                return value
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
            return str(event.value)
        raise self._wrong(event, "the key of a mapping is not a text")

    def _merge(self, merged: dict[str, Any], value: Any, event: Any) -> None:
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, dict):
                raise self._wrong(event, "<< merges a mapping, this is none")
            for key, inherited in part.items():
                merged.setdefault(key, inherited)

    def _scalar(self, event: Any) -> Any:
        if not event.implicit[0]:
            if event.tag == _STRING_TAG or event.implicit[1]:
                return event.value
            if event.tag not in _PLAIN_TAGS | _NUMBER_TAGS:
                raise self._tagged(event)
        return _resolve(event.value)

    def _tagged(self, event: Any) -> InputError:
        tag = event.tag.replace(_YAML_TAG, "!!")
        return self._wrong(event, f"the tag {tag} has no place in Kubernetes objects; remove it")

    def _wrong(self, event: Any, what: str) -> InputError:
        return InputError(f"{self._name}: line {event.start_mark.line + 1}: {what}")

    def unreadable(self, error: yaml.YAMLError) -> InputError:
        """Return what libyaml found wrong, in terms of the text."""
        mark = getattr(error, "problem_mark", None)
        if mark is None:
            return InputError(f"{self._name}: not valid YAML: {' '.join(str(error).split())}")
        lines = self._raw.split(b"\n", mark.line + 1)
        line = lines[mark.line] if mark.line < len(lines) else b""
        if line[: len(line) - len(line.lstrip())].count(b"\t"):
            what = "a tab in the indentation, which YAML forbids; use blanks"
        else:
            problem = getattr(error, "problem", None) or "cannot be read"
            what = f"not valid YAML: {problem}"
        return InputError(f"{self._name}: line {mark.line + 1}: {what}")


def _packed(value: Any) -> Any:
    return msgspec.Raw(msgspec.json.encode(value)) if isinstance(value, dict) else value


def _resolve(text: str) -> Any:
    """Return what a plain scalar is by YAML's core schema; a JSON number keeps its digits."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _JSON_NUMBER.fullmatch(text):
        return msgspec.Raw(text.encode())
    if _OTHER_INT.fullmatch(text):
        sign, digits = (-1 if text[0] == "-" else 1), text.lstrip("+-")
        base = {"0o": 8, "0x": 16}.get(digits[:2], 10)
        return msgspec.Raw(str(sign * int(digits, base)).encode())
    if _OTHER_FLOAT.fullmatch(text):
        return float(text)
    return text
