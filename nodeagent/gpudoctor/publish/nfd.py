"""Our labels as a feature file of Node Feature Discovery, for agents that may not write nodes.

The worker of NFD reads each file of its `features.d` folder that is not hidden: lines of
`key=value`, and comments `# +name=value` that direct how. A key with a namespace becomes a label
as it is, unless the cluster's nfd-master denies the namespace (`-deny-label-ns`); one without
gets `feature.node.kubernetes.io/`. After `+expiry-time` (RFC 3339) the lines below count no more,
and NFD takes the labels off: so a dead agent's labels go, even with no controller. A file over
64 KiB is not read.
Source: kubernetes-sigs/node-feature-discovery, customization guide and source/local; worker and
master of v0.18.2 put the labels of such a file on a node and take them off once it has expired.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gpudoctor.publish import names

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
FILE = "gpudoctor"
MOST_BYTES = 65536
"""What NFD reads of a file: a larger one it leaves out."""

_EXPIRY = "# +expiry-time="
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def render(labels: Mapping[str, str], now: datetime, lifetime: timedelta) -> str:
    """The file's text: `labels` by whole key, which NFD forgets `lifetime` after `now`.

    A key that is not ours or a value that no label can have raises ValueError: NFD would take a
    line break for another label.
    """
    for key, value in labels.items():
        if not names.is_ours(key) or not _VALUE.fullmatch(value):
            raise ValueError(f"not a label of ours: {key}={value!r}")
    expiry = (now.astimezone(UTC) + lifetime).strftime("%Y-%m-%dT%H:%M:%SZ")
    lines = [
        "# Written by gpudoctor; changes to it are overwritten.",
        f"{_EXPIRY}{expiry}",
        *(f"{key}={value}" for key, value in sorted(labels.items())),
    ]
    return "\n".join(lines) + "\n"


def parse(text: str, now: datetime) -> dict[str, str]:
    """Return the labels of ours in such a file that have not expired; none of what is odd."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(_EXPIRY) and _is_over(line.removeprefix(_EXPIRY), now):
            return {}
        key, equals, value = line.partition("=")
        if equals and names.is_ours(key) and _VALUE.fullmatch(value):
            found[key] = value
    return found


def _is_over(expiry: str, now: datetime) -> bool:
    try:
        return datetime.fromisoformat(expiry) < now
    except (ValueError, TypeError):
        return True
