"""`gpudoctor compat`, from the command line to the report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from gpudoctor.cli import root
from gpudoctor.errors import InputError


def run(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(root, ["compat", *arguments, "-o", "json"])
    return result.exit_code, json.loads(result.stdout)


def test_answers_with_rule_errors_and_ways_out() -> None:
    status, report = run("--driver", "535.183.06", "--cuda", "13.0.2", "--gpu", "Tesla T4")
    assert status == 1
    assert report["roots"] == ["driver-too-old"]
    assert report["facts"]["compat"] == {
        "verdict": "fails",
        "rule": "none",
        "error_codes": [35],
        "driver_cuda": "12.2",
        "capability": "7.5",
    }
    assert "cuda-compat-13-0" in report["findings"][0]["fix"]


def test_limits_alone_are_no_failure() -> None:
    status, report = run("--driver", "535.183.06", "--cuda", "cu128", "--gpu", "A100")
    assert (status, report["roots"]) == (0, [])
    assert report["facts"]["compat"]["verdict"] == "ok-with-limits"


def test_what_no_table_knows_is_cannot_tell() -> None:
    status, report = run("--driver", "700.1.1", "--cuda", "15.0", "--gpu", "H100")
    assert (status, report["verdict"]) == (3, "unknown")


@pytest.mark.parametrize(
    "arguments",
    [["--driver", "new"], ["--driver", "535", "--cuda", "latest"], ["--runtime-mode", "x"]],
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(root, ["compat", *arguments]).exit_code == 2


def test_missing_versions_are_asked_for() -> None:
    result = CliRunner().invoke(root, ["compat", "--driver", "535"])
    assert isinstance(result.exception, InputError)
