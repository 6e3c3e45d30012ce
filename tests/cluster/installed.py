"""The chart on the test cluster, and agents with the tokens that the kubelet would give them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpudoctor.publish import names
from gpudoctor.publish.writes import Write
from gpudoctor.sources.kubernetes import client
from tests import helm
from tests.cluster import accounts, objects
from tests.cluster.accounts import Right
from tests.cluster.admin import JSON, Admin, wait_for
from tests.cluster.control_plane import ControlPlane

NAMESPACE = helm.NAMESPACE
_NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": NAMESPACE,
        "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
    },
}


@dataclass(frozen=True)
class Installed:
    """An install on nodes of its own; no kubelet runs its pods."""

    control_plane: ControlPlane
    admin: Admin
    nodes: tuple[str, ...]

    def agent_pod(self, node: str) -> JSON:
        """The pod that the DaemonSet controller and the scheduler put on the node."""

        def bound() -> JSON | None:
            pods = self.admin.list(
                "v1", "Pod", NAMESPACE,
                labelSelector="app.kubernetes.io/component=agent",
                fieldSelector=f"spec.nodeName={node}",
            )  # fmt: skip
            return pods[0] if pods else None

        return wait_for(f"agent's pod on {node}", bound)

    def agent_token(self, node: str) -> str:
        """The token that the kubelet of the node would mount into its agent's pod."""
        return self.admin.token(NAMESPACE, names.AGENT, pod=self.agent_pod(node))

    def kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig with the token, in the install's namespace."""
        return self.control_plane.write_kubeconfig(name, {"token": token}, NAMESPACE)

    def agent(self, node: str) -> Sender:
        """The agent of the node."""
        return Sender(self.kubeconfig(f"agent-{node}", self.agent_token(node)))

    def controller(self) -> Sender:
        """The controller."""
        token = self.admin.token(NAMESPACE, names.CONTROLLER)
        return Sender(self.kubeconfig("controller", token))


@dataclass(frozen=True)
class Sender:
    """Sends writes with one account's token."""

    kubeconfig: Path

    def send(self, write: Write) -> None:
        """Send it; an ApiError has the server's words of a refusal."""
        with client.connect(str(self.kubeconfig)) as connected:
            connected.send(
                write.method, write.path, write.body,
                content_type=write.content_type, query=write.query, what=write.what,
            )  # fmt: skip


@contextlib.contextmanager
def installed(
    control_plane: ControlPlane, admin: Admin, nodes: tuple[str, ...], *options: str
) -> Iterator[Installed]:
    """Install the chart by helm on these new GPU nodes; uninstall it without its hook."""
    labels = objects.hardware() | {"kubernetes.io/os": "linux"}
    made = [admin.create(objects.node(name, gpus=8, labels=labels)) for name in nodes]
    admin.create(_NAMESPACE)
    place = ("--namespace", NAMESPACE)
    answer = helm.run(
        "install", "gpudoctor", str(helm.CHART), *place, *options,
        kubeconfig=control_plane.admin_kubeconfig,
    )  # fmt: skip
    try:
        assert answer.returncode == 0, answer.stderr
        for account in (names.AGENT, names.CONTROLLER):
            right = Right("", "nodes", "patch")
            accounts.wait_until_granted(admin, NAMESPACE, account, right)
        yield Installed(control_plane, admin, nodes)
    finally:
        helm.run(
            "uninstall", "gpudoctor", *place, "--no-hooks", "--ignore-not-found",
            kubeconfig=control_plane.admin_kubeconfig,
        )  # fmt: skip
        # No kubelet ends the pods, and a namespace lasts as long as they.
        for pod in admin.list("v1", "Pod", NAMESPACE):
            admin.delete({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]})
        admin.delete(_NAMESPACE)
        for one in made:
            admin.delete(one)
        wait_for("end of the namespace", lambda: not admin.exists(_NAMESPACE))
