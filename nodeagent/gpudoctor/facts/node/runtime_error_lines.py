"""Recognises what runtimes, toolkit, device plugin, NVML and CUDA print when a GPU cannot be used.

The texts are the table in `runtime_error_texts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpudoctor.facts.node.runtime_error_texts import ALIASES, CODES, ERRORS, HINTS, NUMBERED
from gpudoctor.facts.node.runtime_errors import RecognisedError

_MAX_LINE = 4096
_MAX_TEXT = 400
_MAX_CAUSES = 256

_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in ERRORS)


def recognise(line: str) -> RecognisedError | None:
    """Return the cause that a line names, None for any other line."""
    line = line[:_MAX_LINE]
    for name, pattern in _PATTERNS:
        if match := pattern.search(line):
            values = {
                ALIASES.get(key, key): text.strip()
                for key, text in match.groupdict().items()
                if text
            }
            return RecognisedError(name, line.strip()[:_MAX_TEXT], values)
    if match := NUMBERED.search(line):
        known = CODES.get(int(match["code"]))
        return None if known is None else RecognisedError(known, line.strip()[:_MAX_TEXT])
    return None


def _hint(line: str) -> RecognisedError | None:
    found = (name for name, pattern in HINTS if pattern.search(line))
    name = next(found, None)
    return None if name is None else RecognisedError(name, line.strip()[:_MAX_TEXT])


def recognise_all(lines: Iterable[str]) -> Iterator[tuple[int, RecognisedError]]:
    """Return the recognised lines with their numbers, from 1, the first of each cause."""
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    hint: tuple[int, RecognisedError] | None = None
    for number, line in enumerate(lines, 1):
        found = recognise(line)
        if found is None:
            if hint is None and (hinted := _hint(line[:_MAX_LINE])) is not None:
                hint = number, hinted
            continue
        key = found.name, tuple(sorted(found.values.items()))
        if key not in seen and len(seen) < _MAX_CAUSES:
            seen.add(key)
            yield number, found
    if hint is not None and not seen:
        yield hint
