"""What a container on this node gets unless it asks for more: locked memory and /dev/shm.

Neither is in the API. Both come from the container runtime's own limits and defaults, so the
containers that run here show them: what most of them have is the default.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from gpudoctor.facts.node import process
from gpudoctor.facts.node.containers import Container
from gpudoctor.sources.host import Host

_MOST_LOOKED_AT = 40


class Default(msgspec.Struct, frozen=True):
    """Bytes (-1 unlimited) that `have` of `seen` containers have; None where they do not agree."""

    size: int | None
    have: int
    seen: int


class ContainerDefaults(msgspec.Struct, frozen=True):
    """The defaults of the node's containers."""

    memlock: Default
    shm: Default


def read(host: Host, containers: Sequence[Container]) -> ContainerDefaults:
    """Look at the limits and mounts of the first containers on the node."""
    some = containers[:_MOST_LOOKED_AT]
    host.expect(f"/proc/{one.pid}/{name}" for one in some for name in ("limits", "mountinfo"))
    return ContainerDefaults(
        memlock=_most(process.memlock_soft(host, one.pid) for one in some),
        shm=_most(process.shm_option(host, one.pid) for one in some),
    )


def _most(sizes: Iterable[int | None]) -> Default:
    known = Counter(size for size in sizes if size is not None)
    if not known:
        return Default(None, 0, 0)
    [(size, have)] = known.most_common(1)
    seen = known.total()
    return Default(size if 2 * have > seen else None, have, seen)
