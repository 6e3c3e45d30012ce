"""CPU and NUMA node lists as the kernel prints them: `0-55,112-167`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6})(?::\d+/\d+)?)?$")
_MOST = 1 << 16


def parse(text: str) -> frozenset[int] | None:
    """Return the numbers of a list; the empty set for an empty one, None if it is not a list."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        part = part.strip()
        if not part:
            continue
        match = _RANGE.match(part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MOST:
            return None
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def render(numbers: Iterable[int]) -> str:
    """Return the shortest list of these numbers, `none` for no number."""
    parts: list[str] = []
    run: list[int] = []
    for number in [*sorted(numbers), None]:
        if run and number == run[-1] + 1:
            run.append(number)
            continue
        if run:
            parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
        run = [] if number is None else [number]
    return ",".join(parts) or "none"
