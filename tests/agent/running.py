"""An agent as a process of its own, beside the API that a test serves to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import trustme

from tests.agent.small_cluster import NODE, SmallCluster
from tests.sources.kubernetes.api_server import ApiServer, serving

END_SECONDS = 30.0


@contextlib.contextmanager
def api_of(cluster: SmallCluster, folder: Path) -> Iterator[tuple[ApiServer, Path]]:
    """Serve the cluster; yields the server and a kubeconfig for it in `folder`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    with serving(cluster.answer, authority.issue_cert("127.0.0.1")) as api:
        try:
            yield api, kubeconfig(api.url, folder)
        finally:
            cluster.end_streams()


def kubeconfig(url: str, folder: Path) -> Path:
    entry = {"server": url, "certificate-authority": str(folder / "ca.pem")}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": entry}],
        "users": [{"name": "agent", "user": {"token": "secret-token"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "agent"}}],
        "current-context": "test",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


def command(
    kubeconfig_: Path,
    *arguments: str,
    root: Path | None,
    period: float = 1,
    node: str = NODE,
) -> list[str]:
    at_root = [] if root is None else [f"--host-root={root}"]
    return [
        sys.executable, "-m", "gpudoctor", "agent", f"--node={node}", f"--period={period:g}",
        "--listen=127.0.0.1:0", f"--kubeconfig={kubeconfig_}", *at_root, *arguments,
    ]  # fmt: skip


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "POD_NAMESPACE": "gpudoctor", "POD_NAME": "agent-x"}


class Agent:
    """A running agent: what it says on stderr is kept in a file."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("ab") as stream:
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment()
            )

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def port(self) -> int | None:
        """The port of its endpoint, None until it has said it."""
        _, found, rest = self.said().rpartition("metrics on port ")
        return int(rest.split()[0]) if found and rest.split() else None

    def stop(self) -> int:
        """End it as Kubernetes does and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(END_SECONDS)


@contextlib.contextmanager
def running(words: Sequence[str], log: Path) -> Iterator[Agent]:
    agent = Agent(words, log)
    try:
        yield agent
    finally:
        if agent.process.poll() is None:
            agent.kill()
