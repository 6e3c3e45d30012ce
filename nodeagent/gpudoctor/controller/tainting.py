"""Keeps the optional taint on failing nodes, or, where it is not wanted, off all nodes.

A node whose verdict is not known keeps the taint that it has: nobody said that it is well again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpudoctor.controller.nodes import Keys, Node, Rest
from gpudoctor.controller.writer import Writer
from gpudoctor.publish import brake, taint

_WELL = frozenset({"healthy", "warning"})


class Tainter:
    """Puts and lifts the taint; `wanted` is the option."""

    def __init__(self, writer: Writer, say: Callable[[str], None], *, wanted: bool) -> None:
        self._writer = writer
        self._say = say
        self._wanted = wanted
        self._tainted: set[str] = set()

    @property
    def tainted(self) -> int:
        """How many nodes have our taint."""
        return len(self._tainted)

    def saw(self, rest: Iterable[Rest]) -> None:
        """Note which nodes have our taint, as it was read from all of them."""
        self._tainted = {node.name for node in rest if node.is_tainted}

    def adjust(self, nodes: Iterable[Keys], *, braked: bool) -> None:
        """Bring the taints to what the verdicts say; under the brake none is put."""
        for node in nodes:
            has = node.name in self._tainted
            if self._wanted and node.verdict == brake.BAD:
                if not has and not braked:
                    self._put(node.name)
            elif has and (not self._wanted or node.verdict in _WELL):
                self._lift(node.name)

    def _put(self, name: str) -> None:
        def put(node: Node) -> bool:
            write = taint.put(name, node.metadata.resource_version, node.taints)
            if write:
                self._writer.send(write, "taint")
            return True

        if self._writer.on_node(name, put):
            self._tainted.add(name)
            self._say(f"Node/{name}: is failing; tainted {taint.KEY_EFFECT}")

    def _lift(self, name: str) -> None:
        def lift(node: Node) -> bool:
            write = taint.lift(name, node.metadata.resource_version, node.taints)
            if write:
                self._writer.send(write, "taint")
            return True

        self._writer.on_node(name, lift)
        self._tainted.discard(name)
        self._say(f"Node/{name}: taint {taint.KEY_EFFECT} lifted")
