"""Recognises what runtimes, toolkit, device plugin, NVML and CUDA print when a GPU cannot be used.

The texts are the table in `runtime_error_texts.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from gpudoctor.facts.node.runtime_error_carriers import cuda_answer, nvml_answer
from gpudoctor.facts.node.runtime_error_texts import ALIASES, ERRORS, GENERAL, HINTS, NO_HINT
from gpudoctor.facts.node.runtime_errors import RecognisedError

_MAX_LINE = 4096
_MAX_TEXT = 400
_MAX_CAUSES = 256

# One of these, in lower case, stands in any line that the patterns and tables know.
_SIGNS = (
    "cuda", "nvidia", "nvml", "cudnn", "cublas", "gpu", "accelerator", "driver", "fail", "error",
    "not able", "not found", "no such", "not supported", "could", "cannot", "unable", "invalid",
    "unknown", "illegal", "of memory", "of_memory", "oom", "enough", "available memory",
    "free memory", "exhausted", "ptx", "sm_", "kernel", "nouveau", "rejected", "inotify", "watch",
    "enospc", "emfile", "restricted", "not signed", "call to cu", "too many open", "capable",
    "no device", "uncorrectable", "launch", "misaligned", "assert", "program counter",
    "address space", "initiali", "combination", "compatib", "mps ", "stub", "insufficient", "err!",
    "reset", "recovery action", "fabric", "cdi", "unsatisfied", "not permitted", "library",
    "cumem", "only has",
)  # fmt: skip

_Patterns = tuple[tuple[str, re.Pattern[str]], ...]

_CAUSES = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in ERRORS)
_GENERAL = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in GENERAL)


def recognise(line: str) -> RecognisedError | None:
    """Return the cause that a line names, None for any other line."""
    line = line[:_MAX_LINE]
    small = line.lower()
    if not any(sign in small for sign in _SIGNS):
        return None
    if (found := _by_pattern(line, _CAUSES)) is not None:
        return found
    name = cuda_answer(line) or nvml_answer(line)
    return _by_pattern(line, _GENERAL) if name is None else RecognisedError(name, _shown(line))


def _by_pattern(line: str, patterns: _Patterns) -> RecognisedError | None:
    for name, pattern in patterns:
        if match := pattern.search(line):
            values = {
                ALIASES.get(key, key): text.strip()
                for key, text in match.groupdict().items()
                if text
            }
            return RecognisedError(name, _shown(line), values)
    return None


def _shown(line: str) -> str:
    return line.strip()[:_MAX_TEXT]


def _hint(line: str) -> RecognisedError | None:
    found = (name for name, pattern in HINTS if pattern.search(line))
    name = next(found, None)
    return None if name is None else RecognisedError(name, _shown(line))


def recognise_all(
    lines: Iterable[str], also: Callable[[str], RecognisedError | None] = lambda _line: None
) -> Iterator[tuple[int, RecognisedError]]:
    """Return the recognised lines with their numbers, from 1, the first of each cause.

    `also` is asked where this module does not know the line.
    """
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    hint: tuple[int, RecognisedError] | None = None
    hinted = True
    for number, line in enumerate(lines, 1):
        found = recognise(line) or also(line)
        if found is None:
            hinted = hinted and NO_HINT not in line
            if hint is None and (told := _hint(line[:_MAX_LINE])) is not None:
                hint = number, told
            continue
        key = found.name, tuple(sorted(found.values.items()))
        if key not in seen and len(seen) < _MAX_CAUSES:
            seen.add(key)
            yield number, found
    if hint is not None and hinted and not seen:
        yield hint
