"""Names of objects in the words of others: events, commands, variables."""

from __future__ import annotations

import re


def names(text: str, name: str) -> bool:
    """Whether a text has this name, and not only a longer one that holds it.

    A name is an RFC 1123 label: `train-1` is not in `train-10` or `my-train-1`, but it is in
    `train-1.train.team.svc:29500`.
    """
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) is not None
