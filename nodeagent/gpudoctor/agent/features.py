"""The labels in a file for Node Feature Discovery, where the agent may not write nodes.

It is written each round, so that it does not expire; by this node's own clock, since NFD's worker
compares with that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpudoctor.publish import names, nfd
from gpudoctor.sources import whole_file

PERIODS = 3
"""After so many periods without a round the labels expire, as the controller would take them."""


class FeatureFile:
    """The file in NFD's folder. `say` hears once that it cannot be written."""

    def __init__(self, folder: Path, period_s: float, say: Callable[[str], None]) -> None:
        self._path = folder / nfd.FILE
        self._lifetime = timedelta(seconds=PERIODS * period_s)
        self._say = say
        self._complaint = ""

    def labels(self) -> dict[str, str]:
        """Return the labels of ours that the agent before left in it."""
        try:
            lines = self._path.read_text("utf-8", "replace").splitlines()
        except OSError:
            return {}
        pairs = (line.partition("=") for line in lines if names.is_ours(line))
        return {key: value for key, _, value in pairs}

    def write(self, labels: Mapping[str, str]) -> None:
        """Put these labels in place of what the file has."""
        text = nfd.render(labels, datetime.now(UTC), self._lifetime)
        try:
            whole_file.write(self._path, text.encode())
        except OSError as error:
            complaint = f"{self._path} cannot be written: {error.strerror}"
        else:
            complaint = ""
        if complaint and complaint != self._complaint:
            self._say(complaint)
        self._complaint = complaint
