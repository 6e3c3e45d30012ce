"""A Kubernetes control plane of real parts on loopback, with no kubelet: nodes are objects.

etcd, kube-apiserver, kube-scheduler and kube-controller-manager run with TLS, RBAC, the default
admission plugins and an audit log. Tests write Node objects and their status, and the real
scheduler answers with its real events. Nothing runs the pods: their status is the tests' too.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import trustme

LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 15.0

# What GPU clusters turn on where it is not yet the default.
FEATURE_GATES = {
    "1.34": (
        "DRAConsumableCapacity",
        "DRADeviceBindingConditions",
        "DRADeviceTaints",
        "DRAExtendedResource",
        "DRAPartitionableDevices",
        "ResourceHealthStatus",
    ),
    "1.37": (),
}

# What the situations need. Without pod collection, taint eviction, attach-detach and the like,
# which would act on pods that no kubelet looks after.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "daemonset-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "validatingadmissionpolicy-status-controller",
)

# RequestReceived is written before the server works on a request, so whoever has the answer can
# count on the line; ResponseComplete has the status code.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [{"level": "Metadata", "omitStages": ["ResponseStarted"]}],
}


@dataclass(frozen=True)
class AuditedRequest:
    """One request as the audit log has it."""

    user: str
    agent: str
    verb: str
    uri: str
    group: str
    resource: str

    @property
    def is_of_gpudoctor(self) -> bool:
        """Whether gpudoctor sent it."""
        return self.agent.startswith("gpudoctor/")

    @property
    def is_of_bound_pods(self) -> bool:
        """Whether it is a page of the list of all bound pods, which is counted apart."""
        return self.uri.startswith("/api/v1/pods?fieldSelector=spec.nodeName%21%3D%2C")


@dataclass
class ControlPlane:
    """A running control plane; `start` makes one, `stop` ends it."""

    line: str
    folder: Path
    programs: Path
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _url: str = ""
    _api_flags: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The API server's address."""
        return self._url

    @property
    def authority(self) -> Path:
        """The PEM file of the authority that signed the server's certificate."""
        return self.folder / "ca.pem"

    @property
    def admin_certificate(self) -> tuple[Path, Path]:
        """The PEM files of the cluster administrator's certificate and key."""
        return self.folder / "admin.pem", self.folder / "admin.key"

    @property
    def server_certificate(self) -> tuple[Path, Path]:
        """The PEM files of the certificate and key that the server shows."""
        return self.folder / "server.pem", self.folder / "server.key"

    @property
    def is_serving(self) -> bool:
        """Whether the API server's process runs."""
        process = self._running.get("kube-apiserver")
        return process is not None and process.poll() is None

    @property
    def admin_kubeconfig(self) -> Path:
        """The kubeconfig of the cluster administrator."""
        return self.folder / "admin.kubeconfig"

    def start(self, *, api_only: bool = False) -> None:
        """Start all parts, or etcd and the API server alone; returns when they are ready.

        RuntimeError with the end of the part's log when one does not come up.
        """
        client_port, peer_port, api_port = free_ports(3)
        self._url = f"https://{LOOPBACK}:{api_port}"
        self._issue_certificates()
        self._run("etcd", *self._etcd_flags(client_port, peer_port))
        self._api_flags = self._api_server_flags(client_port, api_port)
        self.start_api_server()
        if api_only:
            return
        self._run("kube-scheduler", *self._scheduler_flags())
        self._run("kube-controller-manager", *self._controller_manager_flags())
        self._wait("kube-controller-manager", self._default_service_account_exists)

    def stop(self) -> None:
        """End all parts, those that lean on others first."""
        for name in reversed(list(self._running)):
            process = self._running.pop(name)
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def kill_api_server(self) -> None:
        """End the API server as a crash would."""
        process = self._running.pop("kube-apiserver")
        process.kill()
        process.wait()

    def start_api_server(self) -> None:
        """Start the API server, also again after it was killed, and wait until it is ready."""
        self._run("kube-apiserver", *self._api_flags)
        self._wait("kube-apiserver", self._api_server_is_ready)

    def audit_log(self) -> list[AuditedRequest]:
        """All requests that the server has received so far, in the order of their arrival."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        received = (json.loads(line) for line in lines)
        return [
            AuditedRequest(
                event["user"].get("username", ""),
                event.get("userAgent", ""),
                event["verb"],
                event["requestURI"],
                *_resource(event.get("objectRef", {})),
            )
            for event in received
            if event["stage"] == "RequestReceived"
        ]

    def write_kubeconfig(
        self, name: str, user: dict[str, Any], namespace: str = "default", server: str = ""
    ) -> Path:
        """Write `name`.kubeconfig with this user entry, for the server or one in its place."""
        path = self.folder / f"{name}.kubeconfig"
        content = kubeconfig(server or self._url, self.authority, name, user, namespace)
        path.write_text(json.dumps(content))
        return path

    def _issue_certificates(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        _write(self.folder, "server", authority.issue_cert(LOOPBACK, "localhost"))
        for name, user, group in (
            ("admin", "admin", "system:masters"),
            ("scheduler", "system:kube-scheduler", "system:kube-scheduler"),
            # Its controllers would each use a service account of their own; one that may do
            # everything starts faster, and it is not what is tested.
            ("controller-manager", "system:kube-controller-manager", "system:masters"),
        ):
            # A certificate without any host name has a critical extension that Go refuses.
            issued = authority.issue_cert(
                f"{name}.invalid", common_name=user, organization_name=group
            )
            _write(self.folder, name, issued)
            certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
            user_entry = {"client-certificate": str(certificate), "client-key": str(key)}
            self.write_kubeconfig(name, user_entry)
        _write(self.folder, "service-account", authority.issue_cert("service-account.invalid"))

    def _etcd_flags(self, client_port: int, peer_port: int) -> list[str]:
        client, peer = f"http://{LOOPBACK}:{client_port}", f"http://{LOOPBACK}:{peer_port}"
        return [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # the data need not outlive the tests
            "--log-level=warn",
        ]

    def _api_server_flags(self, etcd_port: int, port: int) -> list[str]:
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(AUDIT_POLICY))
        certificate, key = self.server_certificate
        account_key = self.folder / "service-account.key"
        return [
            f"--etcd-servers=http://{LOOPBACK}:{etcd_port}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--client-ca-file={self.authority}",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",  # loopback cannot be a Service's endpoint
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.folder / 'audit.log'}",
            # All resource.k8s.io versions: device taint rules were alpha in 1.34.
            "--runtime-config=api/beta=true,resource.k8s.io/v1alpha3=true",
            *self._feature_gates(),
        ]

    def _scheduler_flags(self) -> list[str]:
        config = self.folder / "scheduler.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(self.folder / "scheduler.kubeconfig")},
                    "leaderElection": {"leaderElect": False},
                    "podMaxBackoffSeconds": 1,
                }
            )
        )
        return [f"--config={config}", "--secure-port=0", *self._feature_gates()]

    def _controller_manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.folder / 'controller-manager.kubeconfig'}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--root-ca-file={self.authority}",
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            f"--controllers={','.join(CONTROLLERS)}",
            # No kubelet renews a Lease: a node is what its last written status says.
            "--node-monitor-grace-period=24h",
            *self._feature_gates(),
        ]

    def _feature_gates(self) -> list[str]:
        gates = ",".join(f"{gate}=true" for gate in FEATURE_GATES[self.line])
        return [f"--feature-gates={gates}"] if gates else []

    def _run(self, name: str, *flags: str) -> None:
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [self.programs / name, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )

    def _wait(self, name: str, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not is_ready():
            ended = [part for part, process in self._running.items() if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                part = ended[0] if ended else name
                tail = self._log(part).read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{part} did not come up:\n{tail}")
            time.sleep(0.05)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _api_server_is_ready(self) -> bool:
        return self._answers("/readyz")

    def _default_service_account_exists(self) -> bool:
        return self._answers("/api/v1/namespaces/default/serviceaccounts/default")

    def _answers(self, path: str) -> bool:
        certificate, key = self.admin_certificate
        with contextlib.suppress(requests.ConnectionError, requests.Timeout):
            return requests.get(
                self._url + path,
                cert=(str(certificate), str(key)),
                verify=str(self.authority),
                timeout=5,
            ).ok
        return False


@contextlib.contextmanager
def running(programs: Path, folder: Path, line: str) -> Iterator[ControlPlane]:
    """A whole control plane for as long as the context lasts."""
    control_plane = ControlPlane(line, folder, programs)
    try:
        control_plane.start()
        yield control_plane
    finally:
        control_plane.stop()


def kubeconfig(
    server: str, authority: Path, name: str, user: dict[str, Any], namespace: str
) -> dict[str, Any]:
    """A kubeconfig with one cluster, one user and one context."""
    cluster = {"server": server, "certificate-authority": str(authority)}
    context = {"cluster": "test", "user": name, "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }


def _resource(reference: dict[str, str]) -> tuple[str, str]:
    """API group and `resource` or `resource/subresource` of an audited request."""
    names = [reference.get("resource", ""), reference.get("subresource", "")]
    return reference.get("apiGroup", ""), "/".join(filter(None, names))


def free_ports(count: int) -> Sequence[int]:
    """Ports of the loopback interface that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]


def _write(folder: Path, name: str, issued: trustme.LeafCert) -> None:
    chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
    (folder / f"{name}.pem").write_bytes(chain)
    issued.private_key_pem.write_to_path(folder / f"{name}.key")
