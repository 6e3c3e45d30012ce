"""`gpudoctor controller` where it cannot work: one line, what is wrong, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpudoctor.publish.brake import HOLD
from gpudoctor.publish.election import DURATION, RETRY
from tests.cli.running import run

NOWHERE = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "contexts": [{"name": "c", "context": {"cluster": "c", "user": ""}}],
    "current-context": "c",
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "config"
    path.write_text(json.dumps(NOWHERE))
    return str(path)


def test_clean_up_without_an_api_server_says_so(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str
) -> None:
    result = run(monkeypatch, ["controller", "--clean-up", "--kubeconfig", kubeconfig])
    assert (result.status, result.out) == (2, "")
    assert "http://127.0.0.1:1: connection refused" in result.err
    assert "Traceback" not in result.err


def test_an_address_that_is_none(monkeypatch: pytest.MonkeyPatch, kubeconfig: str) -> None:
    arguments = ["controller", "--listen", "here", "--kubeconfig", kubeconfig]
    result = run(monkeypatch, arguments)
    assert result.status == 2
    assert "--listen here: not HOST:PORT or :PORT" in result.err


@pytest.mark.parametrize(
    ("option", "value"), [("--agent-timeout", "0"), ("--brake-share", "101"), ("--period", "x")]
)
def test_a_value_that_is_out_of_range(
    monkeypatch: pytest.MonkeyPatch, option: str, value: str
) -> None:
    result = run(monkeypatch, ["controller", option, value])
    assert result.status == 2
    assert option in result.err


def test_the_help_has_the_times_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    text = run(monkeypatch, ["controller", "--help"]).out
    assert f"another leads within {DURATION + RETRY:.0f} s" in text
    assert f"after {HOLD} periods" in text
