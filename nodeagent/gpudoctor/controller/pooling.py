"""Keeps the ConfigMap of the pools current: labels by the watch, allocatable by the full list."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gpudoctor.controller.nodes import Keys, Rest, decoded
from gpudoctor.controller.writer import Writer
from gpudoctor.publish import names, pools
from gpudoctor.publish.pools import Offer
from gpudoctor.sources.kubernetes.errors import ConflictError, NotFoundError
from gpudoctor.sources.kubernetes.kinds import CONFIG_MAP

_OURS = (pools.GPUS, pools.OFFERS)


class _ConfigMap(msgspec.Struct, frozen=True):
    data: dict[str, str] | None = None


class Pooler:
    """Writes the ConfigMap where what the nodes offer differs from what stands there."""

    def __init__(self, writer: Writer, namespace: str, say: Callable[[str], None]) -> None:
        self._writer = writer
        self._namespace = namespace
        self._say = say
        self._gpus: dict[str, int] = {}
        self._stands: dict[str, str] = {}
        self._complaint = ""

    def saw(self, rest: Iterable[Rest]) -> None:
        """Note what was read from all nodes, and read the ConfigMap as it is."""
        self._gpus = {node.name: node.gpus for node in rest}
        try:
            found = self._writer.client.get(CONFIG_MAP, names.POOLS, self._namespace)
        except NotFoundError:
            self._stands = {}
        else:
            self._stands = decoded(found, _ConfigMap, f"ConfigMap {names.POOLS}").data or {}

    def adjust(self, nodes: Iterable[Keys]) -> None:
        """Write what these nodes offer, unless it stands there."""
        offers = [Offer(self._gpus.get(node.name, 0), node.ours) for node in nodes]
        wanted = pools.data(offers, self._stands.get(pools.ON_DEMAND, ""))
        stands = {key: value for key, value in self._stands.items() if key in _OURS}
        if wanted == stands:
            return
        try:
            self._writer.send(pools.config_map(self._namespace, wanted), "pools")
        except ConflictError as error:
            # A site that keeps the keys by hand keeps them.
            self._complain(f"ConfigMap {names.POOLS} is kept by someone else: {error}")
            return
        self._complaint = ""
        self._stands = {
            key: value for key, value in self._stands.items() if key not in _OURS
        } | wanted
        told = ", ".join(f"{key}={value}" for key, value in wanted.items()) or "nothing"
        self._say(f"ConfigMap {names.POOLS}: the pools offer {told}")

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self._complaint = text
            self._say(text)
