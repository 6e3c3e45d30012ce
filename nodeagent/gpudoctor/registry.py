"""Finds the checks: every one, ours too, comes in by the entry-point group `gpudoctor.checks`.

An entry point names a `CheckSet`. Ours are those of the package `gpudoctor_checks`; others are
third-party, which the agent leaves off unless they are named. Of our own sets the generated
index `gpudoctor_checks/index.json` tells which types of facts they take, so that a start
imports only those that have something to judge; `python -m gpudoctor.registry DIR` writes it,
and a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

import msgspec

from gpudoctor.catalogue import INDEX, Catalogue
from gpudoctor.checking import Check, CheckSet
from gpudoctor.report import Unknown

GROUP = "gpudoctor.checks"
OURS = "gpudoctor_checks"
_OUR_RUNBOOKS = "gpudoctor_runbooks"


class Registry:
    """The check sets, their runbooks, and what could not be loaded."""

    def __init__(self, sets: Iterable[CheckSet] = ()) -> None:
        self._sets: list[CheckSet] = []
        self._waiting: list[tuple[EntryPoint, frozenset[str]]] = []
        self.broken: list[Unknown] = []
        self.catalogue = Catalogue()
        for check_set in sets:
            self.add(check_set)

    def add(self, check_set: CheckSet) -> None:
        """Add a set with its runbooks; CatalogueError if they cannot be used."""
        self.catalogue.load(check_set.runbooks)
        self._sets.append(check_set)

    def add_later(self, point: EntryPoint, takes: Iterable[str]) -> None:
        """Add the set of an entry point when facts of one of these types (by full name) come."""
        self._waiting.append((point, frozenset(takes)))

    def load(self, point: EntryPoint) -> None:
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
        wanted = [point for point, takes in self._waiting if takes & types]
        self._waiting = [(p, takes) for p, takes in self._waiting if not takes & types]
        for point in wanted:
            self.load(point)
        return tuple(check for check_set in self._sets for check in check_set)


def load(third_party: Iterable[str] | None = None) -> Registry:
    """Find the check sets of all entry points.

    `third_party` limits those of other distributions to these entry-point names; None takes
    all. One that cannot be imported becomes an unknown and the rest go on.
    """
    allowed = None if third_party is None else set(third_party)
    registry = Registry()
    registry.catalogue.load(_OUR_RUNBOOKS)
    index = _index()
    for point in sorted(entry_points(group=GROUP)):
        if _is_ours(point) and point.name in index:
            registry.add_later(point, index[point.name])
        elif _is_ours(point) or allowed is None or point.name in allowed:
            registry.load(point)
    return registry


def build_index() -> bytes:
    """Return the index of our check sets: entry-point name -> types of facts, one a line."""
    lines = []
    for point in sorted(entry_points(group=GROUP)):
        if _is_ours(point):
            takes = sorted({_name(check.takes) for check in point.load()})
            lines.append(f"{msgspec.json.encode(point.name).decode()}: "
                         f"{msgspec.json.encode(takes).decode()}")  # fmt: skip
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _index() -> dict[str, list[str]]:
    """Read the index; without one every set is loaded at once, which is slower and no worse."""
    spec = find_spec(OURS)
    places = spec.submodule_search_locations if spec else None
    try:
        raw = Path(places[0], INDEX).read_bytes() if places else b"{}"
        return msgspec.json.decode(raw, type=dict[str, list[str]])
    except (OSError, msgspec.MsgspecError):
        return {}


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_ours(point: EntryPoint) -> bool:
    # By module: asking for the distribution's name would parse its metadata at every start.
    return point.module.partition(".")[0] == OURS


if __name__ == "__main__":
    Path(sys.argv[1], INDEX).write_bytes(build_index())
