"""From a round's report and the node as it is to what has to be written: nothing at rest.

Labels and condition are compared with the node as the API server has it, so that what somebody
took away comes back. Diagnoses are compared with what was last sent, since an agent may not read
any; now and then they are sent again as they are, which changes nothing where nobody touched them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from gpudoctor.agent.clock import ServerClock
from gpudoctor.agent.declared import KEY as VERDICT
from gpudoctor.agent.declared import Declared
from gpudoctor.agent.feature_file import FeatureFile
from gpudoctor.agent.node_object import NodeObject
from gpudoctor.agent.outbox import Entry, Outbox
from gpudoctor.agent.subjects import Settled
from gpudoctor.agent.truth import Track, advance_all, standing
from gpudoctor.errors import InputError
from gpudoctor.publish import condition, diagnosis, events, labels, names, targets
from gpudoctor.publish.brake import Braked
from gpudoctor.publish.events import Series
from gpudoctor.publish.status import Status
from gpudoctor.publish.targets import Target
from gpudoctor.publish.writes import Write, forced
from gpudoctor.report import Report, Verdict
from gpudoctor.sources.kubernetes.errors import ConflictError, NotFoundError

CONTESTED_ROUNDS = 15
"""Rounds for which a label that another owns is left to him before we try again."""

RESENT_ROUNDS = 60
"""Rounds after which an unchanged Diagnosis is sent again: one that was deleted is made anew."""

_LABELS, _CONDITION = "labels", "condition"


class Pod(msgspec.Struct, frozen=True):
    """What a child of the report is about."""

    namespace: str
    name: str
    uid: str


class _Sent(msgspec.Struct, frozen=True):
    """The status of a Diagnosis as it was sent last, and in which round."""

    status: Status
    round: int


class Publisher:
    """Takes in rounds, one after the other, and puts what changed into the outbox."""

    def __init__(
        self,
        node: str,
        namespace: str,
        period_s: float,
        outbox: Outbox,
        clock: ServerClock,
        braked: Callable[[], Braked | None],
        features: FeatureFile | None = None,
    ) -> None:
        """With `features` the labels go into that file, and nothing is written to the node."""
        self._node = node
        self._namespace = namespace
        self._period_s = period_s
        self._outbox = outbox
        self._clock = clock
        self._features = features
        self._declared = Declared(node, braked)
        self._labels: dict[str, Track] | None = None
        self._contested: dict[str, int] = {}
        self._settled: dict[Target, Settled] = {}
        self._sent: dict[Target, _Sent] = {}
        self._tally: Mapping[str, Series] = {}

    @property
    def held(self) -> bool:
        """Whether the brake keeps the verdict from turning bad."""
        return self._declared.held is not None

    def round(self, number: int, report: Report, node: NodeObject, pods: Iterable[Pod]) -> None:
        """Take in the report of round `number` (from 1) on a node, which the API server has so."""
        first = self._labels is None
        desired = labels.desired(report)
        desired.pop(VERDICT, None)
        if self._labels is None:
            known, before = self._left(report, node)
            self._labels = {key: Track(value) for key, value in known.items() if key != VERDICT}
            same = self._declared.adopt(report, known, before)
        else:
            same = False
        stood = standing(self._labels)
        self._labels = advance_all(self._labels, desired, number)
        self._declared.see(report, number)
        self._put_labels(node, number)
        self._put_condition(report, node)
        renew = standing(self._labels) != stood
        self._settle(targets.node(self._node), report, number, quiet=first and same, renew=renew)
        self._settle_pods(number, report, pods, quiet=first)

    def _left(
        self, report: Report, node: NodeObject
    ) -> tuple[Mapping[str, str], Mapping[str, Any] | None]:
        """Return the labels and the condition that a life before left; no file has a condition."""
        if self._features is None:
            return node.own_labels, node.condition
        return self._features.read(), msgspec.to_builtins(condition.of(report))

    def _put_labels(self, node: NodeObject, number: int) -> None:
        assert self._labels is not None
        wanted = standing(self._labels) | self._declared.label()
        if self._features is not None:
            self._features.write(wanted)
            return
        self._contested = {key: until for key, until in self._contested.items() if until > number}
        wanted = {key: value for key, value in wanted.items() if key not in self._contested}
        left = node.own_labels.keys() - wanted.keys() - self._contested.keys()
        if not left and all(node.labels.get(key) == value for key, value in wanted.items()):
            self._outbox.drop([_LABELS])
            return

        def refused(error: InputError) -> tuple[Write, ...]:
            keys = labels.contested(str(error)) if isinstance(error, ConflictError) else frozenset()
            if not keys:
                return ()
            self._contested |= dict.fromkeys(keys, number + CONTESTED_ROUNDS)
            rest = {key: value for key, value in wanted.items() if key not in keys}
            return (labels.write(self._node, rest),)

        write = labels.write(self._node, wanted)
        self._outbox.put(_LABELS, Entry(writes=(write,), refused=refused))

    def _put_condition(self, report: Report, node: NodeObject) -> None:
        if self._features is not None:
            return
        write = self._declared.condition(report, node.condition, self._clock.text())
        if write is None:
            self._outbox.drop([_CONDITION])
            return
        taken = forced(write)

        def refused(error: InputError) -> tuple[Write, ...]:
            # The type is ours; the controller has spoken for us while we were silent.
            return (taken,) if isinstance(error, ConflictError) else ()

        self._outbox.put(_CONDITION, Entry(writes=(write,), refused=refused))

    def _settle_pods(
        self, number: int, report: Report, pods: Iterable[Pod], *, quiet: bool
    ) -> None:
        by_name = {(pod.namespace, pod.name): pod for pod in pods}
        here: set[Target] = {targets.node(self._node)}
        for child in report.children:
            pod = by_name.get((child.subject.namespace or "", child.subject.name or ""))
            if child.subject.kind == "Pod" and pod is not None:
                target = targets.pod(pod.namespace, pod.name, pod.uid)
                here.add(target)
                self._settle(target, child, number, quiet=quiet)
        present = {pod.uid for pod in by_name.values()}
        gone = [
            target for target in self._settled if target not in here and target.uid not in present
        ]
        for target in gone:
            del self._settled[target]
            self._sent.pop(target, None)
        self._outbox.drop(str(target) + f"#{target.uid}" for target in gone)

    def _settle(
        self, target: Target, report: Report, number: int, *, quiet: bool, renew: bool = False
    ) -> None:
        """Put the Diagnosis and the Events of what changed; `quiet` is for what was told before."""
        settled = self._settled.setdefault(target, Settled())
        new = settled.see(report, number, renew=renew)
        if new is None:
            last = self._sent.get(target)
            if last is not None and number - last.round >= RESENT_ROUNDS:
                self._send_diagnosis(target, last.status, number)
            return
        self._put_diagnosis(target, new, number)
        if not quiet:
            self._put_events(target, settled.told, new)
        if new.verdict is not Verdict.UNKNOWN:
            settled.told = new

    def _put_diagnosis(self, target: Target, report: Report, number: int) -> None:
        own = f"{self._namespace}/{names.node_diagnosis(self._node)}"
        status = diagnosis.of(
            report,
            period_seconds=max(1, round(self._period_s)),
            node_diagnosis=None if target.namespace is None else own,
        )
        before = self._sent.get(target)
        if before is None or not diagnosis.same(before.status, status):
            self._send_diagnosis(target, status, number)

    def _send_diagnosis(self, target: Target, status: Status, number: int) -> None:
        make = diagnosis.object_write(target, self._namespace)
        write = diagnosis.status_write(target, self._namespace, status)

        def refused(error: InputError) -> tuple[Write, ...]:
            return (make, write) if isinstance(error, NotFoundError) else ()

        writes = (write,) if target in self._sent else (make, write)
        key = f"{target}#{target.uid}"
        self._outbox.put(key, Entry(writes=writes, refused=refused))
        self._sent[target] = _Sent(status, number)

    def _put_events(self, target: Target, before: Report | None, after: Report) -> None:
        changes = events.changes(
            before,
            after,
            target=target,
            node=self._node,
            now=self._clock.text(),
            tally=self._tally,
        )
        self._tally = changes.tally
        for write in changes.writes:
            self._outbox.put(write.path, Entry(writes=(write,), minor=True))
