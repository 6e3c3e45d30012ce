"""A pod's labels and annotations as the downward API writes them: `key="value"` lines, escaped."""

from __future__ import annotations

import re

_LINE = re.compile(r'^([^=\s]+)="(.*)"\s*$', re.MULTILINE)


def read(text: str) -> dict[str, str]:
    """Return what the file holds; lines of another form are left out."""
    return {
        name: value.replace('\\"', '"').replace("\\n", " ").replace("\\\\", "\\")
        for name, value in _LINE.findall(text)
    }
