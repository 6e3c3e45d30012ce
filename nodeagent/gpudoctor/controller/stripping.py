"""Takes back what a silent agent published of its node, and notes when it is back.

The node is read first, then it is seen that the Lease still stands, and each write is on the
condition that the node is as it was read: what an agent that comes back writes in between, the
server refuses us. Should we be the later by a hair, the agent sees in its next round that its
labels are gone, since it compares with the node as the API server has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import quote

import msgspec

from gpudoctor.controller.nodes import Metadata, Node, decoded
from gpudoctor.controller.writer import Writer, is_outdated
from gpudoctor.errors import InputError
from gpudoctor.publish import diagnosis, names, strip, targets
from gpudoctor.publish.status import StaleForm
from gpudoctor.publish.targets import Target
from gpudoctor.publish.writes import Write, delete
from gpudoctor.sources.kubernetes.errors import NotFoundError, NotServedError
from gpudoctor.sources.kubernetes.kinds import DIAGNOSIS, LEASE

_STALE = "status.stale.since"
"""The field by which Diagnoses can be selected; the CRD lists it, and `status.node`."""


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class _Owned(Metadata, frozen=True, rename="camel"):
    owner_references: tuple[_Owner, ...] | None = None


class _Status(msgspec.Struct, frozen=True):
    node: str | None = None
    stale: StaleForm | None = None


class _Diagnosis(msgspec.Struct, frozen=True):
    metadata: _Owned = _Owned()
    status: _Status = _Status()

    @property
    def target(self) -> Target | None:
        """What it is about; None for an object that no agent made."""
        for owner in self.metadata.owner_references or ():
            if owner.kind == "Pod":
                return targets.pod(self.metadata.namespace, owner.name, owner.uid)
        node = self.status.node
        if node and self.metadata.name == names.node_diagnosis(node):
            return targets.node(node)
        return None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    renew_time: str | None = None


class Lease(msgspec.Struct, frozen=True):
    """The Lease of an agent, as far as it matters here."""

    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()


class Stripper:
    """Strips nodes and marks Diagnoses. `timeout` is for the words only."""

    def __init__(
        self, writer: Writer, namespace: str, timeout: float, say: Callable[[str], None]
    ) -> None:
        self._writer = writer
        self._namespace = namespace
        self._timeout = timeout
        self._say = say

    def strip(self, node: str, renewal: str) -> bool:
        """Strip a node whose agent was last seen to renew at `renewal`; False if it is back."""

        def take_back(found: Node) -> bool:
            if self._renewal(node) != renewal:
                return False
            self._take_back(found)
            return True

        before = self._writer.counts.total()
        if not self._writer.on_node(node, take_back):
            return False
        self._mark(node)
        if self._writer.counts.total() > before:
            self._say(f"Node/{node}: its agent is silent; what it published is taken back")
        return True

    def freshen(self, nodes: Iterable[str] | None, is_alive: Callable[[str], bool]) -> None:
        """Take the stale mark off what living agents keep again: of these nodes, or of all."""
        selectors = (
            [f"{_STALE}!="]
            if nodes is None
            else [f"status.node={node},{_STALE}!=" for node in nodes]
        )
        for selector in selectors:
            for found in self._diagnoses(selector):
                if found.status.stale and found.status.node and is_alive(found.status.node):
                    self._mark_one(found, stale=None)

    def forget(self, lease: str) -> None:
        """Delete the Lease of a node that is no more."""
        path = f"/apis/{LEASE.group}/v1/namespaces/{quote(self._namespace, safe='')}/leases/"
        self._delete(delete(f"Lease {lease}", path + quote(lease, safe="")), "lease")

    def forget_diagnoses(self) -> None:
        """Delete the Diagnoses in our namespace of nodes that are no more."""
        for found in self._diagnoses("", self._namespace):
            target, node = found.target, found.status.node
            if target and target.kind == "Node" and node and not self._exists(node):
                self._delete(diagnosis.delete_write(target, self._namespace), "diagnosis")

    def _take_back(self, node: Node) -> None:
        meta = node.metadata
        version = meta.resource_version
        write = strip.keys(
            meta.name, version, meta.labels or (), meta.annotations or (), names.CONTROLLER
        )
        if write:
            answer = self._writer.send(write, "keys")
            version = decoded(answer, Node, write.what).metadata.resource_version
        why = (
            f"the agent of this node has not renewed Lease {self._namespace}/"
            f"{names.agent_lease(meta.name)} for {self._timeout:.0f} s, so nobody knows how the"
            f" node is; see its pod: kubectl -n {self._namespace} get pods -o wide"
            f" --field-selector spec.nodeName={meta.name}"
        )
        said = strip.silent(meta.name, version, why, node.condition, self._now())
        if said:
            self._writer.send(said, "condition")

    def _mark(self, node: str) -> None:
        stale = StaleForm(since=self._now(), why=f"the agent of node {node} is silent")
        for found in self._diagnoses(f"status.node={node},{_STALE}="):
            self._mark_one(found, stale)

    def _mark_one(self, found: _Diagnosis, stale: StaleForm | None) -> None:
        target = found.target
        if target is None:
            return
        write = (
            diagnosis.fresh_write(target, self._namespace)
            if stale is None
            else diagnosis.stale_write(target, self._namespace, stale.since, stale.why)
        )
        try:
            self._writer.send(write, "stale")
        except NotFoundError:
            pass  # gone with its pod
        except InputError as error:
            if not is_outdated(error):
                raise
            self._say(f"not marked: {error}")

    def _renewal(self, node: str) -> str:
        try:
            found = self._writer.client.get(LEASE, names.agent_lease(node), self._namespace)
        except NotFoundError:
            return ""
        return decoded(found, Lease, names.agent_lease(node)).spec.renew_time or ""

    def _diagnoses(self, selector: str, namespace: str | None = None) -> list[_Diagnosis]:
        try:
            found = self._writer.client.list(
                DIAGNOSIS, namespace, fields=selector, keep=_keep_diagnosis
            )
        except NotServedError:
            return []  # installed without the CRD: there are none
        return [decoded(raw, _Diagnosis, "Diagnosis") for raw in found.objects]

    def _exists(self, node: str) -> bool:
        try:
            self._writer.node(node)
        except NotFoundError:
            return False
        return True

    def _delete(self, write: Write, kind: str) -> None:
        try:
            self._writer.send(write, f"deleted {kind}")
        except NotFoundError:
            return
        self._say(f"{write.what} deleted: the node is no more")

    def _now(self) -> str:
        return self._writer.client.now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _keep_diagnosis(raw: msgspec.Raw) -> msgspec.Raw:
    """Keep of a Diagnosis what tells whose it is: its findings can be long."""
    found = decoded(raw, _Diagnosis, "Diagnosis")
    return msgspec.Raw(msgspec.json.encode(found))
