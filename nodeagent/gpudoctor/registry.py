"""Finds the checks: every one, ours too, comes in by the entry-point group `gpudoctor.checks`.

An entry point names a `CheckSet`. Ours are those of the package `gpudoctor_checks`; others are
third-party, which the agent leaves off unless they are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points

from gpudoctor.catalogue import Catalogue
from gpudoctor.checking import Check, CheckSet
from gpudoctor.report import Unknown

GROUP = "gpudoctor.checks"
OURS = "gpudoctor_checks"


class Registry:
    """The loaded check sets, their runbooks, and what could not be loaded."""

    def __init__(self, sets: Iterable[CheckSet]) -> None:
        self._sets: list[CheckSet] = []
        self.broken: list[Unknown] = []
        self.catalogue = Catalogue()
        for check_set in sets:
            self.add(check_set)

    def add(self, check_set: CheckSet) -> None:
        """Add a set with its runbooks; CatalogueError if they cannot be used."""
        self.catalogue.load(check_set.runbooks)
        self._sets.append(check_set)

    def __iter__(self) -> Iterator[Check]:
        for check_set in self._sets:
            yield from check_set


def load(third_party: Iterable[str] | None = None) -> Registry:
    """Load the check sets of all entry points, ours first.

    `third_party` limits those of other distributions to these entry-point names; None takes
    all. One that cannot be imported becomes an unknown and the rest go on.
    """
    allowed = None if third_party is None else set(third_party)
    registry = Registry(())
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not _is_ours(point), point)):
        if not _is_ours(point) and allowed is not None and point.name not in allowed:
            continue
        try:
            loaded = point.load()
            if not isinstance(loaded, CheckSet):
                raise TypeError(f"{point.value} is a {type(loaded).__name__}, not a CheckSet")
            registry.add(loaded)
        except Exception as error:  # noqa: BLE001 - a third party's import may raise anything
            registry.broken.append(Unknown(f"checks {point.name}", f"cannot be loaded: {error}"))
    return registry


def _is_ours(point: EntryPoint) -> bool:
    # By module: asking for the distribution's name would parse its metadata at every start.
    return point.module.partition(".")[0] == OURS
