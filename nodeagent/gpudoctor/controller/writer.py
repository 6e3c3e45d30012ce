"""Sends what publish/ declares, as the leader and only as the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from gpudoctor.controller.nodes import Node, decoded
from gpudoctor.errors import InputError
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import ConflictError, NotFoundError, RefusedError
from gpudoctor.sources.kubernetes.kinds import NODE

_TRIES = 5
"""Of a write that the server refuses because the node changed: a kubelet writes every 10 s."""
_TEST_FAILED = 422
"""What the server says to a JSON patch whose test does not hold."""


class LostError(Exception):
    """Another controller may lead by now: nothing more is written."""


class Writer:
    """Writes through one client. `leads` is asked before each; `counts` are writes by kind."""

    def __init__(self, client: Client, leads: Callable[[], bool]) -> None:
        self.client = client
        self._leads = leads
        self.counts: Counter[str] = Counter()

    def send(self, write: Write, kind: str) -> msgspec.Raw:
        """Send one write and return the server's answer; LostError if we no longer lead."""
        if not self._leads():
            raise LostError
        answer = deliver(self.client, write)
        self.counts[kind] += 1
        return answer

    def node(self, name: str) -> Node:
        """Read a node; NotFoundError if there is none."""
        return decoded(self.client.get(NODE, name), Node, f"Node/{name}")

    def on_node(self, name: str, change: Callable[[Node], bool], first: Node | None = None) -> bool:
        """Have `change` write to the node as it is now, again while it changes under its hands.

        `first` is the node where it was just read. What `change` returned; False where there is
        no such node.
        """
        for left in reversed(range(_TRIES)):
            try:
                node, first = first or self.node(name), None
                return change(node)
            except NotFoundError:
                return False
            except RefusedError as error:
                if left == 0 or not is_outdated(error):
                    raise
        raise AssertionError("the last try returns or raises")


def deliver(client: Client, write: Write) -> msgspec.Raw:
    """Send a write; what goes wrong names the right that it takes."""
    return client.send(
        write.method,
        write.path,
        write.body,
        content_type=write.content_type,
        query=write.query,
        what=f"{write.permission} ({write.what})",
    )


def is_outdated(error: InputError) -> bool:
    """Whether the server refused because the object is not as it was when it was read."""
    return isinstance(error, ConflictError) or (
        isinstance(error, RefusedError) and error.status == _TEST_FAILED
    )
