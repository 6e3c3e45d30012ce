"""Finds the checks: every one, ours too, comes in by the entry-point group `gpudoctor.checks`.

An entry point names a `CheckSet`. Ours are those of the distribution `gpudoctor`; others are
third-party, which the agent leaves off unless they are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points

from gpudoctor.catalogue import Catalogue
from gpudoctor.checking import Check, CheckSet
from gpudoctor.report import Unknown

GROUP = "gpudoctor.checks"
OURS = "gpudoctor"


class Registry:
    """The loaded check sets, their runbooks, and what could not be loaded."""

    def __init__(self, sets: Iterable[CheckSet], broken: Iterable[Unknown] = ()) -> None:
        self._sets = tuple(sets)
        self.broken = tuple(broken)
        packages = dict.fromkeys(check_set.runbooks for check_set in self._sets)
        self.catalogue = Catalogue(packages)

    def __iter__(self) -> Iterator[Check]:
        for check_set in self._sets:
            yield from check_set


def load(third_party: Iterable[str] | None = None) -> Registry:
    """Load the check sets of all entry points.

    `third_party` limits those of other distributions to these entry-point names; None takes
    all. One that cannot be imported becomes an unknown and the rest go on.
    """
    allowed = None if third_party is None else set(third_party)
    sets: list[CheckSet] = []
    broken: list[Unknown] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: (not _is_ours(point), point)):
        if not _is_ours(point) and allowed is not None and point.name not in allowed:
            continue
        try:
            loaded = point.load()
        except Exception as error:  # noqa: BLE001 - a third party's import may raise anything
            broken.append(Unknown(f"checks {point.name}", f"cannot be loaded: {error}"))
            continue
        if isinstance(loaded, CheckSet):
            sets.append(loaded)
        else:
            broken.append(
                Unknown(f"checks {point.name}", f"{point.value} is a {type(loaded).__name__}")
            )
    return Registry(sets, broken)


def _is_ours(point: EntryPoint) -> bool:
    return point.dist is not None and point.dist.name == OURS
