"""`gpudoctor check --lint`: manifests of several kinds, exit status, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.checks.test_manifests import job
from tests.cli.running import run


@pytest.mark.parametrize(
    ("changes", "options", "status"),
    [
        ({}, [], 0),
        ({"volumeMounts": []}, [], 0),
        ({"volumeMounts": []}, ["--fail-on", "warning"], 1),
        ({"limits": {"rdma/hca_shared_devices_a": 0}}, [], 1),
        ({"volumeMounts": []}, ["--fail-on", "warning", "--ignore", "WKL001"], 0),
    ],
)
def test_exit_status(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, object],
    options: list[str],
    status: int,
) -> None:
    file = tmp_path / "train.yaml"
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "train"}}
    file.write_text(yaml.safe_dump_all([service, job(**changes)]))  # type: ignore[arg-type]
    result = run(monkeypatch, ["check", "--lint", str(file), "-o", "json", *options])
    assert result.status == status, result.err
    answer = json.loads(result.out)
    assert answer["facts"]["manifests"] == {"objects": 2, "pod_templates": 1}
    [child] = answer["children"]
    assert (child["subject"]["kind"], child["subject"]["name"]) == ("Job", "train")


def test_a_file_without_pods_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("apiVersion: v1\nkind: Service\nmetadata: {name: train}\n")
    result = run(monkeypatch, ["check", "--lint", str(file)])
    assert result.status == 2
    assert "none of its 1 objects holds a pod template" in result.err


def test_one_question_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, ["check", "--lint", "a.yaml", "--pod", "trainer-0"])
    assert result.status == 2
    assert "--lint" in result.err
