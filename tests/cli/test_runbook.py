"""`gpudoctor runbook`: for people on a terminal, for programs elsewhere."""

from __future__ import annotations

import pytest

from gpudoctor import registry
from tests.cli.running import run


def test_list_has_one_line_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(monkeypatch, ["runbook"]).out.splitlines()
    assert len(lines) == len(list(registry.load().catalogue))
    assert any(line.startswith("WKL004  warning   rdma-not-requested  <pod> ") for line in lines)


def test_list_on_a_terminal_is_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = run(monkeypatch, ["runbook", "--no-color"], terminal=True).out
    driver, workload = out.index("Driver and CUDA"), out.index("What the pod asks for")
    assert driver < out.index("  DRV001  driver-too-old") < workload
    assert "\x1b" not in out
    assert "\x1b[36m" in run(monkeypatch, ["runbook"], terminal=True).out


@pytest.mark.parametrize("name", ["rdma-not-requested", "WKL004", "wkl004", "wkl4"])
def test_page_is_markdown_when_piped(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    result = run(monkeypatch, ["runbook", name])
    assert result.status == 0
    assert result.out.startswith("# rdma-not-requested\n")
    assert "## Fix\n" in result.out


def test_page_is_laid_out_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(monkeypatch, ["runbook", "WKL004", "--no-color"], terminal=True).out
    assert "##" not in out
    assert "WKL004, warning" in out
    assert max(map(len, out.splitlines())) < 100


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("rdma-not-requestd", "rdma-not-requested (WKL004)"),
        ("rdma", "rdma-device-absent (NET001)"),
        ("xyzzy", "`gpudoctor runbook` lists them"),
    ],
)
def test_a_wrong_name_gets_near_ones(monkeypatch: pytest.MonkeyPatch, name: str, near: str) -> None:
    result = run(monkeypatch, ["runbook", name])
    assert (result.status, result.out) == (2, "")
    assert near in result.err
