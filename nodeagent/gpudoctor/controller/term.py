"""One term of a leader: everything that it knows begins with it and ends with it.

What changes on nodes is acted on as it comes, at most twice a second; the Leases are looked at a
dozen times within the timeout; and once in a few minutes everything is read anew, so that nothing
that was missed stays so.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import msgspec

from gpudoctor.controller import nodes as views
from gpudoctor.controller.leadership import Leadership
from gpudoctor.controller.nodes import Keys, Rest, decoded
from gpudoctor.controller.pooling import Pooler
from gpudoctor.controller.silence import Silence
from gpudoctor.controller.stripping import Lease, Stripper
from gpudoctor.controller.tainting import Tainter
from gpudoctor.controller.writer import Writer
from gpudoctor.errors import InputError
from gpudoctor.publish import names
from gpudoctor.publish.brake import Brake
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import UnreachableError
from gpudoctor.sources.kubernetes.kinds import LEASE, NODE
from gpudoctor.sources.kubernetes.watch import Picture

FULL_S = 300.0
"""Seconds between two readings of everything."""
NEW_S = 15.0
"""Seconds after which a node that was never read in full makes one due."""
_BATCH_S = 0.5
_FAILING_S = 5.0
"""Seconds for which the watch may fail before anyone hears of it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. Times in seconds, `share` between 0 and 1."""

    namespace: str
    timeout: float
    period: float
    share: float
    taint: bool


class Term:
    """The work of a leader, in one thread with `step`; `open_client` makes one for the watch."""

    def __init__(
        self,
        writer: Writer,
        leadership: Leadership,
        settings: Settings,
        open_client: Callable[[], Client],
        say: Callable[[str], None],
    ) -> None:
        now = time.monotonic()
        self._writer = writer
        self._leadership = leadership
        self._settings = settings
        self._say = say
        self._silence = Silence(settings.timeout)
        self._brake = Brake(settings.share, settings.period)
        self._brake.adopt(leadership.braked(), now)
        self._stripper = Stripper(writer, settings.namespace, settings.timeout, say)
        self._tainter = Tainter(writer, say, wanted=settings.taint)
        self._pooler = Pooler(writer, settings.namespace, say)
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._picture = Picture(
            open_client(),
            NODE,
            "",
            metadata_only=True,
            keep=views.keep_keys,
            changed=self._changed.set,
        )
        self._thread = threading.Thread(
            target=self._picture.run, args=(self._ended,), name="nodes", daemon=True
        )
        self._listed = False
        self._complaints: dict[str, str] = {}
        self.failures: Counter[str] = Counter()
        self._nodes: dict[str, Keys] = {}
        self._rest: dict[str, Rest] = {}
        self._stripped: set[str] = set()
        self._look_at = self._full_at = now
        self._thread.start()

    def end(self) -> None:
        """Stop watching. The thread ends with its next line, and is waited for by nobody."""
        self._ended.set()

    def wake(self) -> None:
        """End the wait of the current step."""
        self._changed.set()

    def counts(self) -> dict[str, int]:
        """How many nodes, agents and the like there are, for the metrics."""
        now = time.monotonic()
        agents = self._silence.leases()
        silent = sum(self._silence.is_silent(lease, now) for lease in agents)
        return {
            "nodes": len(self._nodes),
            "agents": len(agents) - silent,
            "silent_agents": silent,
            "tainted_nodes": self._tainter.tainted,
        }

    def step(self) -> None:
        """Wait for something to do and do it; LostError where the term is over."""
        now = time.monotonic()
        self._changed.wait(max(0.0, min(self._look_at, self._full_at) - now))
        self._ended.wait(min(_BATCH_S, self._silence.interval / 4))
        self._changed.clear()
        if not self._has_listed():
            self._look_at = max(self._look_at, time.monotonic() + 1.0)
            self._full_at = max(self._full_at, self._look_at)
            return
        found = (decoded(raw, Keys, "Node") for raw in self._picture.objects())
        self._nodes = {node.name: node for node in found if node.name}
        self._attempt("leases", self._look)
        self._attempt("nodes", self._read_all)
        self._attempt("brake", self._judge)
        if self._rest:
            self._attempt("taint", self._adjust_taints)
            self._attempt("pools", lambda: self._pooler.adjust(self._nodes.values()))

    def _attempt(self, about: str, part: Callable[[], None]) -> InputError | None:
        """Do one part, so that what fails in it does not keep the others back; what failed."""
        try:
            part()
        except InputError as error:
            self.failures[type(error).__name__] += 1
            self._complain(about, str(error))
            return error
        self._complain(about, "")
        return None

    def _complain(self, about: str, text: str) -> None:
        """Say what is wrong when it becomes so; "" is well."""
        if text and self._complaints.get(about) != text:
            self._say(text)
        self._complaints[about] = text

    def _has_listed(self) -> bool:
        """Whether the nodes are known; once they are, an old picture is better than none."""
        failing = self._picture.failing()
        self._listed = self._listed or failing is None or bool(self._picture.objects())
        if failing is None:
            self._complain("watch", "")
        elif failing[1] > _FAILING_S:
            self._complain("watch", f"the nodes cannot be watched: {failing[0]}")
        return self._listed

    def _look(self) -> None:
        """Look at the Leases, and take back what silent agents said."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self._silence.interval
        listed = self._writer.client.list(LEASE, self._settings.namespace, labels=names.AGENTS)
        leases = [decoded(raw, Lease, "Lease") for raw in listed.objects]
        expected = {names.agent_lease(node): node for node in self._nodes}
        self._silence.saw(
            {lease.metadata.name: lease.spec.renew_time or "" for lease in leases},
            expected,
            time.monotonic(),
        )
        self._strip(expected)
        self._forget(expected)

    def _strip(self, expected: dict[str, str]) -> None:
        """Strip the nodes of silent agents; those that take too long wait for the next look."""
        now = time.monotonic()
        back = [
            name
            for lease, name in expected.items()
            if name in self._stripped and self._silence.is_proved_alive(lease, now)
        ]
        if back:
            self._stripper.freshen(back, self._is_alive)
            self._stripped.difference_update(back)
            self._say(f"agents are back: {', '.join(sorted(back))}")
        silent = [
            (lease, name)
            for lease, name in expected.items()
            if self._silence.is_silent(lease, now) and self._is_due(name, lease)
        ]
        for lease, name in silent:
            renewal = self._silence.renewal(lease)
            failed = self._attempt(f"strip {name}", partial(self._strip_one, name, renewal))
            if isinstance(failed, UnreachableError) or time.monotonic() > self._look_at:
                return

    def _strip_one(self, name: str, renewal: str) -> None:
        if self._stripper.strip(name, renewal):
            self._stripped.add(name)

    def _is_due(self, name: str, lease: str) -> bool:
        """Whether a silent node has something to take back, or may have: a CPU node never has."""
        if self._nodes[name].has_any:
            return True
        if name in self._stripped:
            return False
        rest = self._rest.get(name)
        return bool(self._silence.renewal(lease)) or (rest is not None and rest.said is not None)

    def _forget(self, expected: dict[str, str]) -> None:
        """Delete Leases and Diagnoses of nodes that are no more, once the Leases are silent."""
        now = time.monotonic()
        if self._picture.failing():
            return
        gone = [
            lease
            for lease in self._silence.leases()
            if lease not in expected and self._silence.is_silent(lease, now)
        ]
        for lease in gone:
            self._stripper.forget(lease)
        if gone:
            self._stripper.forget_diagnoses()

    def _read_all(self) -> None:
        """Read all nodes in full where it is time, and mark off what is fresh again."""
        now = time.monotonic()
        if self._nodes.keys() - self._rest.keys():
            self._full_at = min(self._full_at, now + NEW_S)
        if now < self._full_at:
            return
        self._full_at = now + NEW_S  # unless it goes well
        listed = self._writer.client.list(NODE, keep=views.keep_rest)
        rest = [decoded(raw, Rest, "Node") for raw in listed.objects]
        self._rest = {node.name: node for node in rest}
        self._tainter.saw(rest)
        failures = (
            self._attempt("pools before", lambda: self._pooler.saw(rest)),
            self._attempt("marks", lambda: self._stripper.freshen(None, self._is_alive)),
        )
        if failures == (None, None):
            self._full_at = now + FULL_S

    def _judge(self) -> None:
        """Do what the nodes' labels ask for: the brake first, since it holds the rest back."""
        now = time.monotonic()
        if by_hand := self._leadership.by_hand():
            if by_hand.braked is None:
                self._brake.lift(now)
            else:
                self._brake.adopt(by_hand.braked, now)
            self._say(f"the brake was {'put on' if by_hand.braked else 'taken off'} by hand")
        for name in self._brake.nodes() - self._nodes.keys():
            self._brake.gone(name)
        for node in self._nodes.values():
            self._brake.saw(node.name, node.verdict, now)
        before = self._brake.braked
        braked = self._brake.judge(self.counts()["agents"], now, datetime.now(UTC))
        if braked != before:
            self._leadership.brake(braked)
            self._say(f"the brake is on: {braked.why}" if braked else "the brake is off")

    def _adjust_taints(self) -> None:
        braked = self._brake.braked is not None
        self._tainter.adjust(self._nodes.values(), braked=braked)

    def _is_alive(self, node: str) -> bool:
        return self._silence.is_proved_alive(names.agent_lease(node), time.monotonic())
