"""The image is built, looked into, and run under podman as the chart's pods run it."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from daemonset import image, lock
from gpudoctor import __version__
from tests import helm, parts
from tests.cluster.admin import wait_for
from tests.daemonset.test_chart import pods
from tests.image import NAME, Store, as_the_kubelet

ROOT = Path(__file__).parents[2]
MOST_MIB = 120
FIELDS = {
    "spec.nodeName": "gpu-a17",
    "metadata.name": "gpudoctor-agent-x2x4p",
    "metadata.namespace": "gpudoctor",
}
LOOK = """
import json, os, shutil, sys
from pathlib import Path
import gpudoctor
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
def refused(path):
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        return error.strerror
print(json.dumps({
    "where": gpudoctor.__file__,
    "programs": [name for name in ("cc", "ld", "make", "sh", "apt", "pip") if shutil.which(name)],
    "writes": {path: refused(path) for path in sys.argv[1:]},
    "caps": status["CapEff"].strip(),
    "no_new_privs": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "uid": os.getuid(),
}))
"""
ASK = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen("http://127.0.0.1:9400" + sys.argv[1]) as answer:
        print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print(0, error)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    if os.getuid():
        parts.missing("root, for an image of Debian packages")
    made = Store(tmp_path_factory.mktemp("image"))
    made.build()
    return made


@pytest.fixture
def host(tmp_path: Path) -> dict[str, Path]:
    """What of a node's files this machine has not."""
    paths = ("/var/lib/kubelet/pod-resources", "/var/log/containers", "/run/gpudoctor")
    found = {path: tmp_path / path.strip("/").replace("/", "-") for path in paths}
    for path in found.values():
        path.mkdir()
    return found


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder with token and authority that the kubelet mounts into each pod."""
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    trustme.CA().cert_pem.write_to_path(folder / "ca.crt")
    (folder / "token").write_text("no.real.token")
    (folder / "namespace").write_text("gpudoctor")
    return folder


def options(workload: str, host: dict[str, Path], *values: str) -> list[str]:
    return list(as_the_kubelet(pods(helm.template(*values))[workload], host, FIELDS))


def look(store: Store, options: list[str], *paths: str) -> dict[str, Any]:
    """Look around in a container with these options, which end with the image and arguments."""
    before = options[: options.index(NAME)]
    command = ("--entrypoint=/opt/gpudoctor/bin/python3", NAME, "-c", LOOK, *paths)
    found: dict[str, Any] = json.loads(
        store.run("--rm", "--network=none", *before, *command).stdout
    )
    return found


class TestBuild:
    def test_twice_is_the_same_image(self, store: Store) -> None:
        assert store.build("localhost/gpudoctor:again") == store.inspect()["Id"]

    def test_it_is_small(self, store: Store) -> None:
        assert store.inspect()["Size"] < MOST_MIB << 20

    def test_what_it_runs(self, store: Store) -> None:
        config = store.inspect()["Config"]
        assert config["Entrypoint"] == ["gpudoctor"]
        assert config.get("User", "") == "", "preflight must be what the trainer is"
        version = store.run("--rm", "--network=none", NAME, "--version").stdout
        assert version.strip() == f"gpudoctor, version {__version__}"

    def test_a_wheel_and_nothing_to_build_with(self, store: Store) -> None:
        found = look(store, [NAME])
        assert re.fullmatch(
            r"/opt/gpudoctor/lib/python3\.11/site-packages/gpudoctor/__init__\.py", found["where"]
        )
        assert found["programs"] == []

    def test_the_base_is_pinned(self) -> None:
        text = image.HERE.joinpath("Containerfile").read_text()
        [base] = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
        assert re.fullmatch(r"docker\.io/library/python:3\.11-\S+@sha256:[0-9a-f]{64}", base)


class TestLock:
    def test_versions_are_those_that_are_tested(self) -> None:
        tested = set(re.findall(r"^\S+==\S+$", (ROOT / "constraints.txt").read_text(), re.M))
        tested = {line.lower().replace("_", "-") for line in tested}
        locked = re.findall(r"^(\S+==\S+)", lock.REQUIREMENTS.read_text(), re.M)
        assert locked
        assert {line.lower().replace("_", "-") for line in locked} <= tested

    def test_every_file_has_a_hash(self) -> None:
        for file in (lock.REQUIREMENTS, lock.INSTALLER):
            for entry in re.split(r"\n(?=\S)", file.read_text().strip())[1:]:
                assert re.search(r"--hash=sha256:[0-9a-f]{64}$", entry), entry


class TestSecurity:
    def test_the_agent(self, store: Store, host: dict[str, Path]) -> None:
        paths = ("/x", "/host/proc/sys/kernel/hostname", "/host/sys/x", "/host/dev/x")
        more = ("/host/var/log/containers/x", "/opt/gpudoctor/x", "/tmp/x")
        found = look(store, options("gpudoctor-agent", host), *paths, *more)
        assert found["writes"].pop("/tmp/x") is None
        assert set(found["writes"].values()) == {"Read-only file system"}
        assert int(found["caps"], 16) == 1 << 19 | 1 << 34  # SYS_PTRACE, SYSLOG
        assert (found["no_new_privs"], found["seccomp"], found["uid"]) == ("1", "2", 0)

    def test_the_controller(self, store: Store, host: dict[str, Path]) -> None:
        found = look(store, options("gpudoctor-controller", host), "/x", "/opt/gpudoctor/x")
        assert set(found["writes"].values()) == {"Read-only file system"}
        assert (found["caps"], found["uid"]) == ("0" * 16, 65532)


class Running:
    """A container that runs in the background, without a network."""

    def __init__(self, store: Store, identity: str) -> None:
        self._store = store
        self._identity = identity

    def ask(self, path: str) -> tuple[int, str]:
        """GET a path of its endpoint, from inside; status 0 where nothing answers."""
        python = "/opt/gpudoctor/bin/python3"
        answer = self._store.podman("exec", self._identity, python, "-c", ASK, path, check=False)
        status, _, text = answer.stdout.partition(" ")
        return int(status or 0), text

    def log(self) -> str:
        """What it said."""
        logged = self._store.podman("logs", self._identity)
        return logged.stdout + logged.stderr

    def end(self) -> int:
        """Send SIGTERM and return the exit status; SIGKILL would give 137."""
        self._store.podman("stop", "--time=30", self._identity)
        code = self._store.podman("inspect", "--format={{.State.ExitCode}}", self._identity)
        return int(code.stdout)


@contextlib.contextmanager
def running(store: Store, *arguments: str) -> Iterator[Running]:
    identity = store.run("--detach", "--network=none", *arguments).stdout.strip()
    try:
        yield Running(store, identity)
    finally:
        store.podman("rm", "--force", "--time=0", identity)


def in_a_cluster_that_is_away(account: Path) -> tuple[str, ...]:
    return (
        f"--volume={account}:/var/run/secrets/kubernetes.io/serviceaccount:ro",
        "--env=KUBERNETES_SERVICE_HOST=192.0.2.1",
        "--env=KUBERNETES_SERVICE_PORT=443",
    )


def test_the_agent_starts_says_what_it_cannot_see_serves_metrics_and_stops(
    store: Store, host: dict[str, Path], account: Path
) -> None:
    away = in_a_cluster_that_is_away(account)
    with running(store, *away, *options("gpudoctor-agent", host)) as agent:
        wait_for("liveness", lambda: agent.ask("/healthz")[0] == 200, 60)

        def round_ended() -> str | None:
            _, text = agent.ask("/metrics")
            return text if "gpudoctor_rounds_total{" in text else None

        text = wait_for("a round", round_ended, 120)
        assert 'gpudoctor_rounds_total{result="ok"} 1' in text
        assert "gpudoctor_node_verdict{" in text
        assert agent.ask("/readyz")[0] == 503
        said = agent.log()
        assert "Node/gpu-a17 cannot be read" in said
        assert "192.0.2.1" in said
        assert "Traceback" not in said
        assert agent.end() == 0


def test_the_controller_starts_says_what_it_cannot_reach_and_stops(
    store: Store, host: dict[str, Path], account: Path
) -> None:
    away = in_a_cluster_that_is_away(account)
    with running(store, *away, *options("gpudoctor-controller", host)) as controller:
        wait_for("liveness", lambda: controller.ask("/healthz")[0] == 200, 60)
        wait_for("its complaint", lambda: "192.0.2.1" in controller.log(), 60)
        assert "Traceback" not in controller.log()
        assert controller.end() == 0


def test_the_nvml_writer_says_that_there_is_no_driver(store: Store, host: dict[str, Path]) -> None:
    asked = options("gpudoctor-nvml", host, "--set=nvml.mode=runtimeClass")
    written = host["/run/gpudoctor"] / "nvml"
    with running(store, *asked) as writer:
        wait_for("its file", written.exists, 60)
        assert writer.end() == 0
    assert "NVML Shared Library Not Found" in written.read_text()
