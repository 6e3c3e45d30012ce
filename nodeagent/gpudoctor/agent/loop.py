"""The loop of the agent: a round each period, and between rounds what the outbox still holds."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpudoctor.agent import bundle, early, node_object, server
from gpudoctor.agent.clock import ServerClock
from gpudoctor.agent.feature_file import FeatureFile
from gpudoctor.agent.outbox import Entry, Outbox
from gpudoctor.agent.publisher import Pod, Publisher
from gpudoctor.agent.rounds import DEADLINE_S, Order, Rounds
from gpudoctor.errors import InputError
from gpudoctor.publish import brake, lease, metrics, names
from gpudoctor.publish.brake import Braked
from gpudoctor.publish.metrics import AgentState, PreflightFailures
from gpudoctor.publish.writes import Write
from gpudoctor.report import Report, ReportSubject, Unknown, Verdict
from gpudoctor.sources.kubernetes import kinds
from gpudoctor.sources.kubernetes.client import Client
from gpudoctor.sources.kubernetes.errors import ForbiddenError, NotFoundError
from gpudoctor.sources.kubernetes.watch import Picture

JITTER = 0.1
"""Share of the period by which a round comes sooner or later: agents that started together part."""

EARLY_S = 5.0
"""What lies at least between rounds, however often devices change."""

OLD_PERIODS = 3
"""For so many periods objects that can no longer be read are still taken for the state."""

FIRST_LIST_S = 5.0
"""How long the first round waits for the list of pods, so that it sees them."""

STOP_S = 3.0
"""How long a round that is under way at the end is waited for."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line says. `pod` is the agent's own, for its Lease."""

    node: str
    namespace: str
    pod: str
    period_s: float
    listen: str
    host_root: str | None = None
    observe: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    nfd: Path | None = None


class _PodMeta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""


class _Pod(msgspec.Struct, frozen=True):
    metadata: _PodMeta = _PodMeta()


class _Annotations(msgspec.Struct, frozen=True):
    annotations: dict[str, str] | None = None


class _Lease(msgspec.Struct, frozen=True):
    metadata: _Annotations = _Annotations()


class Agent:
    """One agent. `connect` makes a client: the watch needs one of its own."""

    def __init__(
        self, settings: Settings, connect: Callable[[], Client], say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._say = say
        self._client = connect()
        self._clock = ServerClock()
        most_delay_s = min(30.0, settings.period_s / 2)
        self._outbox = Outbox(self._send, most_delay_s=most_delay_s, said=say)
        self._preflights = PreflightFailures()
        self._listed = threading.Event()
        self._picture = Picture(
            connect(),
            kinds.POD,
            f"spec.nodeName={settings.node}",
            keep=self._keep_pod,
            changed=self._listed.set,
            most_delay_s=most_delay_s,
        )
        self._rounds = Rounds(
            Order(
                node=settings.node,
                host_root=settings.host_root,
                observe=settings.observe,
                checks=settings.checks,
            )
        )
        self._publisher = Publisher(
            settings.node,
            settings.namespace,
            settings.period_s,
            self._outbox,
            self._clock,
            self._braked,
            FeatureFile(settings.nfd, settings.period_s, say) if settings.nfd else None,
        )
        self._node: msgspec.Raw | None = None
        self._node_at = 0.0
        self._number = 0
        self._ended: Counter[str] = Counter()
        self._report: Report | None = None
        self._last_round: tuple[float, float] | None = None
        self._alive_at = time.monotonic()
        self._complaints: dict[str, str] = {}
        self._wake = threading.Event()
        self._device_changed = False
        self._stopping = False

    # -- running -------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set. Labels stay: the next agent takes them over."""
        pages = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        with server.serving(self._settings.listen, pages) as port:
            self._say(f"node {self._settings.node}: metrics on port {port}")
            # Daemons: what hangs in a socket or a pipe must not hold up the end.
            watch = threading.Thread(target=self._picture.run, args=(stop,), daemon=True)
            rounds = threading.Thread(target=self._loop, args=(stop,), daemon=True)
            devices = threading.Thread(
                target=early.watch, args=(stop, self._look_again, self._say), daemon=True
            )
            for thread in (watch, rounds, devices):
                thread.start()
            stop.wait()
            self._stopping = True
            self._wake.set()
            rounds.join(STOP_S)
            self._rounds.close()

    def _loop(self, stop: threading.Event) -> None:
        self._listed.wait(FIRST_LIST_S)
        due = ended = time.monotonic()
        while not stop.is_set():
            self._alive_at = time.monotonic()
            try:
                if self._device_changed:
                    self._device_changed = False
                    due = min(due, ended + EARLY_S)
                if time.monotonic() >= due:
                    self._round()
                    ended = time.monotonic()
                    due = time.monotonic() + self._settings.period_s * _jitter()
                self._outbox.flush()
            except Exception as error:  # noqa: BLE001 - the next round may go better
                # The Lease is not renewed by a round that did not end: the controller sees it.
                self._ended["error"] += 1
                self._complain("loop", f"the round failed: {type(error).__name__}: {error}")
                due = time.monotonic() + self._settings.period_s * _jitter()
            waits = self._outbox.wait_s()
            left = max(0.0, due - time.monotonic())
            self._wake.wait(left if waits is None else min(left, max(waits, 0.05)))
            self._wake.clear()

    def _look_again(self) -> None:
        """Have the next round come soon; called by the thread that hears of device changes."""
        self._device_changed = True
        self._wake.set()

    def _round(self) -> None:
        started = time.monotonic()
        self._read_node()
        report = self._look()
        self._report = report
        self._last_round = (self._clock.now().timestamp(), time.monotonic() - started)
        self._complain("loop", "")
        if self._node is None:
            return
        self._number += 1
        node = node_object.read(self._node)
        self._publisher.round(self._number, report, node, self._pods())
        renewal = lease.renew(
            self._settings.node,
            self._settings.namespace,
            self._settings.pod,
            self._clock.now(),
            self._settings.period_s,
        )
        self._outbox.put("lease", Entry(writes=(renewal,)))

    def _look(self) -> Report:
        """Have the child look at the node; a report with nothing but the reason where it cannot."""
        denied = [why for why in (self._why_no_node(), self._why_no_pods()) if why]
        node = None if self._why_no_node() else self._node
        pods = () if self._why_no_pods() else self._picture.objects()
        looked = self._rounds.ask(bundle.of(node, pods, self._clock.text(), denied))
        self._ended["ok" if isinstance(looked, Report) else "failed"] += 1
        self._complain("round", "" if isinstance(looked, Report) else looked)
        if isinstance(looked, Report):
            return looked
        return Report(
            subject=ReportSubject("Node", self._settings.node),
            observed_at=self._clock.text(),
            verdict=Verdict.UNKNOWN,
            roots=(),
            root_ids=(),
            findings=(),
            unknown=(Unknown(f"Node/{self._settings.node}", looked),),
        )

    # -- the API server ------------------------------------------------------------------------

    def _send(self, write: Write) -> None:
        self._client.send(
            write.method,
            write.path,
            write.body,
            content_type=write.content_type,
            query=write.query,
            what=f"{write.method.lower()} {write.what}",
            attempts=1,
        )
        self._clock.told(self._client.now)

    def _read_node(self) -> None:
        try:
            raw = self._client.get(kinds.NODE, self._settings.node)
            self._clock.told(self._client.now)
            node_object.read(raw)
        except (InputError, msgspec.MsgspecError) as error:
            self._complain("node", f"Node/{self._settings.node} cannot be read: {error}")
        else:
            self._node, self._node_at = raw, time.monotonic()
            self._complain("node", "")

    def _why_no_node(self) -> str:
        if self._node is None or self._is_old(time.monotonic() - self._node_at):
            return f"get nodes: {self._complaints.get('node', 'not read')}"
        return ""

    def _why_no_pods(self) -> str:
        failing = self._picture.failing()
        # A watch that is refused is made up for by lists, at the API server's cost: worth a word.
        self._complain("pods", "" if failing is None else failing[0])
        if failing is not None and (not self._listed.is_set() or self._is_old(failing[1])):
            return f"list pods on {self._settings.node}: {failing[0]}"
        return ""

    def _is_old(self, age: float) -> bool:
        return age > OLD_PERIODS * self._settings.period_s

    def _pods(self) -> tuple[Pod, ...]:
        found = (msgspec.json.decode(raw, type=_Pod).metadata for raw in self._picture.objects())
        return tuple(Pod(meta.namespace, meta.name, meta.uid) for meta in found)

    def _keep_pod(self, raw: msgspec.Raw) -> msgspec.Raw:
        self._preflights.observe(msgspec.json.decode(raw))
        return bundle.trimmed(raw)

    def _braked(self) -> Braked | None:
        try:
            raw = self._client.get(kinds.LEASE, names.LEADER_LEASE, self._settings.namespace)
            found = msgspec.json.decode(raw, type=_Lease).metadata.annotations or {}
            return brake.parse(found.get(names.BRAKE))
        except NotFoundError:
            return None  # no controller, no brake
        except ForbiddenError as error:
            self._complain("brake", f"the brake cannot be read and counts as off: {error}")
            return None
        except (InputError, msgspec.MsgspecError) as error:
            return Braked(self._clock.text(), f"it cannot be read: {error}")

    # -- what is told --------------------------------------------------------------------------

    def _metrics(self) -> bytes:
        at, seconds = self._last_round or (None, None)
        state = AgentState(
            period_seconds=self._settings.period_s,
            rounds=dict(self._ended),
            last_round_at=at,
            last_round_seconds=seconds,
            writes=dict(self._outbox.counts),
            waiting_writes=len(self._outbox),
            held=self._publisher.held,
        )
        return metrics.render(self._report, state, dict(self._preflights.counts))

    def _healthz(self) -> bytes | str:
        """Well while the loop turns; what hangs in it has its own bound, so longer is a fault."""
        silence = time.monotonic() - self._alive_at
        if silence > 2 * DEADLINE_S + OLD_PERIODS * self._settings.period_s:
            return f"the loop has stood still for {silence:.0f} s"
        return b"ok\n"

    def _readyz(self) -> bytes | str:
        """Ready once a round has looked at the node with what the API server has of it."""
        if self._number == 0:
            return self._complaints.get("node") or "the first round has not ended"
        return b"ok\n"

    def _complain(self, about: str, text: str) -> None:
        """Say what is wrong when it becomes so; "" is well."""
        if text and self._complaints.get(about) != text and not self._stopping:
            self._say(text)
        if text:
            self._complaints[about] = text
        else:
            self._complaints.pop(about, None)


def _jitter() -> float:
    return random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 - no secret
