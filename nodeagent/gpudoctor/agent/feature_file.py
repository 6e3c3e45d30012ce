"""The feature file of Node Feature Discovery, in place of labels that the agent writes itself.

It is written each round, since NFD drops its labels once the time in it is over: by the clock of
this node, which NFD's worker here reads as well.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpudoctor.publish import nfd

LIVES_PERIODS = 3
"""Periods after which NFD forgets what was not written again."""

_MODE = 0o644


class FeatureFile:
    """The file in NFD's folder of features; `say` hears once that it cannot be written."""

    def __init__(self, folder: Path, period_s: float, say: Callable[[str], None]) -> None:
        self._path = folder / nfd.FILE
        # NFD does not read hidden files: a name that begins so is never half a file of features.
        self._draft = folder / f".{nfd.FILE}"
        self._lifetime = timedelta(seconds=LIVES_PERIODS * period_s)
        self._say = say
        self._trouble = ""

    def read(self) -> dict[str, str]:
        """Return the labels that a life before left and that have not expired."""
        try:
            text = self._path.read_bytes()[: nfd.MOST_BYTES].decode("utf-8", "replace")
        except OSError:
            return {}
        return nfd.parse(text, datetime.now(UTC))

    def write(self, labels: Mapping[str, str]) -> None:
        """Write the labels, whole or not at all; where it fails, those of before expire."""
        text = nfd.render(labels, datetime.now(UTC), self._lifetime)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self._draft, flags, _MODE), "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self._draft, self._path)
        except OSError as error:
            if self._trouble != str(error):
                self._trouble = str(error)
                self._say(f"{self._path} cannot be written: {error.strerror}")
        else:
            self._trouble = ""
