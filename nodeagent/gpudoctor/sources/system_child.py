"""Asks udev and psutil and prints what they say: `python -m … SECTION…`.

One JSON array a line, `["?", section]` before a section and `[section, value]` after it; a value
`{"error": text}` says why there is none. What was printed before a hang is kept.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from gpudoctor.sources.host import devices, own

_SECTIONS: dict[str, Callable[[], Any]] = {
    "devices": lambda: list(devices.enumerate_devices()),
    "interfaces": lambda: list(own.interfaces()),
    "limits": own.limits,
    "waiting": lambda: list(own.waiting()),
}


def main(sections: list[str]) -> None:
    """Print the sections that are asked for."""
    for name in sections:
        print(json.dumps(["?", name]), flush=True)
        try:
            value = _SECTIONS[name]()
        except Exception as error:  # noqa: BLE001 - a library that fails is an answer, too
            value = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps([name, value]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
