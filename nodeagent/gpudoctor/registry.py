"""Finds the checks: every one, ours too, comes in by the entry-point group `gpudoctor.checks`.

An entry point names a `CheckSet`. Ours are those of the package `gpudoctor_checks`; others are
third-party, which the agent leaves off unless they are named. Of our own sets the generated
index `gpudoctor_checks/index.json` tells where they are and which types of facts they take, so
that a start imports only those that have something to judge; `python -m gpudoctor.registry DIR`
writes it, and a test compares. All installed metadata is read only where some of it is of others.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gpudoctor.catalogue import INDEX, Catalogue
from gpudoctor.checking import Check, CheckSet
from gpudoctor.report import Unknown

GROUP = "gpudoctor.checks"
OURS = "gpudoctor_checks"
_OUR_RUNBOOKS = "gpudoctor_runbooks"
_METADATA = (".dist-info", ".egg-info", "EGG-INFO")
_ENTRY_POINTS = "entry_points.txt"
_OURS_ENTRY = f"= {OURS}.".encode()


class _Point(Protocol):
    """An entry point: `value` is `module:attribute`."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> str: ...

    def load(self) -> Any: ...


class _Set(msgspec.Struct, frozen=True):
    """One of our sets as the index has it: its entry point, and the types of facts it takes."""

    name: str
    value: str
    takes: frozenset[str]

    def load(self) -> Any:
        module, _, attribute = self.value.partition(":")
        return getattr(importlib.import_module(module), attribute)


class Registry:
    """The check sets, their runbooks, and what could not be loaded."""

    def __init__(self, sets: Iterable[CheckSet] = ()) -> None:
        self._sets: list[CheckSet] = []
        self._waiting: list[_Set] = []
        self.broken: list[Unknown] = []
        self.catalogue = Catalogue()
        for check_set in sets:
            self.add(check_set)

    def add(self, check_set: CheckSet) -> None:
        """Add a set with its runbooks; CatalogueError if they cannot be used."""
        self.catalogue.load(check_set.runbooks)
        self._sets.append(check_set)

    def add_later(self, check_set: _Set) -> None:
        """Add a set of ours when facts of one of the types that it takes come."""
        self._waiting.append(check_set)

    def load(self, point: _Point) -> None:
        """Add the set of an entry point now; if it cannot be used, that becomes an unknown."""
        try:
            loaded = point.load()
            if not isinstance(loaded, CheckSet):
                raise TypeError(f"{point.value} is a {type(loaded).__name__}, not a CheckSet")
            self.add(loaded)
        except Exception as error:  # noqa: BLE001 - a third party's import may raise anything
            self.broken.append(Unknown(f"checks {point.name}", f"cannot be loaded: {error}"))

    def checks_for(self, facts: Iterable[object]) -> tuple[Check, ...]:
        """Return the checks of every set that may take one of these facts."""
        types = {_name(base) for part in facts for base in type(part).__mro__}
        wanted = [waiting for waiting in self._waiting if waiting.takes & types]
        if wanted:
            self._waiting = [waiting for waiting in self._waiting if not waiting.takes & types]
        for waiting in wanted:
            self.load(waiting)
        return tuple(check for check_set in self._sets for check in check_set)


def load(third_party: Iterable[str] | None = None) -> Registry:
    """Find the check sets of all entry points.

    `third_party` limits those of other distributions to these entry-point names; None takes
    all. One that cannot be imported becomes an unknown and the rest go on.
    """
    allowed = None if third_party is None else set(third_party)
    registry = Registry()
    registry.catalogue.load(_OUR_RUNBOOKS)
    indexed = _index()
    for check_set in indexed:
        registry.add_later(check_set)
    if indexed and (allowed == set() or not _may_have_others()):
        return registry
    known = {check_set.name for check_set in indexed}
    for point in _entry_points():
        if _is_ours(point):
            if point.name not in known:
                registry.load(point)
        elif allowed is None or point.name in allowed:
            registry.load(point)
    return registry


def build_index() -> bytes:
    """Return the index of our check sets: name, entry point and types of facts, one a line."""
    sets = [
        _Set(point.name, point.value, frozenset(_name(check.takes) for check in point.load()))
        for point in _entry_points()
        if _is_ours(point)
    ]
    lines = (msgspec.json.encode(one, order="deterministic").decode() for one in sets)
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def _index() -> list[_Set]:
    """Read the index; without one every set is loaded at once, which is slower and no worse."""
    spec = find_spec(OURS)
    places = spec.submodule_search_locations if spec else None
    try:
        raw = Path(places[0], INDEX).read_bytes() if places else b"[]"
        return msgspec.json.decode(raw, type=list[_Set])
    except (OSError, msgspec.MsgspecError):
        return []


def _entry_points() -> Sequence[_Point]:
    from importlib.metadata import entry_points  # imported late: a fifth of a start

    return sorted(entry_points(group=GROUP))


def _may_have_others() -> bool:
    """Whether another distribution than ours may name checks: the files of each are looked into.

    True also for what cannot be looked into like that, an archive or a finder of another kind.
    """
    if any(hasattr(one, "find_distributions") for one in sys.meta_path if one is not PathFinder):
        return True
    return any(_names_others(text) for place in sys.path for text in _entry_point_files(place))


def _entry_point_files(place: str) -> Iterator[bytes]:
    """Yield the texts of the entry-point files below a place where modules are looked for."""
    try:
        names = os.listdir(place or ".")
    except FileNotFoundError:
        return
    except OSError:
        yield GROUP.encode()  # a file, or may not be listed
        return
    for name in names:
        if name.endswith(_METADATA):
            try:
                yield Path(place, name, _ENTRY_POINTS).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:
                yield GROUP.encode()


def _names_others(text: bytes) -> bool:
    """Whether an entry-point file has our group with an entry that is not ours."""
    _, found, rest = text.partition(GROUP.encode())
    entries = rest.partition(b"\n[")[0].splitlines()[1:]
    return bool(found) and not (entries and all(_OURS_ENTRY in line for line in entries if line))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_ours(point: _Point) -> bool:
    # By module: asking for the distribution's name would parse its metadata, too.
    return point.value.startswith(f"{OURS}.")


if __name__ == "__main__":
    Path(sys.argv[1], INDEX).write_bytes(build_index())
