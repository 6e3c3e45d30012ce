"""Our labels as a feature file of Node Feature Discovery, for agents that may not write nodes.

The worker of NFD reads each file of its `features.d` folder that is not hidden: lines of
`key=value`, and comments `# +name=value` that direct how. A key with a namespace becomes a label
as it is, unless the cluster's nfd-master denies the namespace (`-deny-label-ns`); one without
gets `feature.node.kubernetes.io/`. After `+expiry-time` (RFC 3339) the lines below count no more,
and NFD takes the labels off: so a dead agent's labels go, even with no controller. A file over
64 KiB is not read.
Source: kubernetes-sigs/node-feature-discovery, customization guide and source/local.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gpudoctor.publish import names

FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
FILE = "gpudoctor"

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
        f"# +expiry-time={expiry}",
        *(f"{key}={value}" for key, value in sorted(labels.items())),
    ]
    return "\n".join(lines) + "\n"
