"""`gpudoctor compat`, from the command line to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpudoctor.cli import root
from gpudoctor.errors import InputError
from tests.sources.kubernetes.api_server import serving
from tests.sources.kubernetes.test_gather import World


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


def test_a_missing_image_version_is_asked_for() -> None:
    result = CliRunner().invoke(root, ["compat", "--driver", "535"])
    assert isinstance(result.exception, InputError)


def test_the_text_leads_with_rule_and_errors() -> None:
    arguments = ["compat", "--driver", "535.183.06", "--cuda", "12.8", "--gpu", "A100"]
    text = CliRunner().invoke(root, arguments).stdout
    assert text.startswith(
        "CUDA 12.8 on driver 535.183.06 (CUDA 12.2) on A100: ok-with-limits by the minor rule;"
        " CUDA errors to expect: 36, 222"
    )


def node_dump(tmp_path: Path, labels: dict[str, str]) -> str:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": labels}}
    path = tmp_path / "node.json"
    path.write_text(json.dumps(node))
    return str(path)


RTX_4090 = {
    "nvidia.com/cuda.driver-version.full": "570.172.08",
    "nvidia.com/cuda.runtime-version.major": "12",
    "nvidia.com/cuda.runtime-version.minor": "8",
    "nvidia.com/gpu.product": "NVIDIA-GeForce-RTX-4090",
}


def test_a_live_node_answers_as_its_dump(tmp_path: Path) -> None:
    dump = node_dump(tmp_path, RTX_4090)
    recorded = run("--node", "gpu-1", "--from", dump, "--cuda", "13.0")
    with serving(World([json.loads(Path(dump).read_text())])) as server:
        live = run("--node", "gpu-1", "--server", server.url, "--cuda", "13.0")
        assert [asked.path for asked in server.asked] == ["/api/v1/nodes/gpu-1"]
        arguments = ["compat", "--node", "gpu-2", "--server", server.url, "--cuda", "13.0"]
        missing = CliRunner().invoke(root, arguments)
    assert recorded[0] == 1
    assert [live[0], live[1]["findings"]] == [recorded[0], recorded[1]["findings"]]
    assert isinstance(missing.exception, InputError)
    assert "gpu-2" in str(missing.exception)


def test_driver_and_gpu_of_a_nodes_labels(tmp_path: Path) -> None:
    dump = node_dump(tmp_path, RTX_4090)
    status, report = run("--node", "gpu-1", "--from", dump, "--cuda", "13.0")
    assert (status, report["roots"]) == (1, ["driver-too-old"])
    assert report["facts"]["compat"]["capability"] == "8.9"
    asked = run("--node", "gpu-1", "--from", dump, "--cuda", "13.0", "--driver", "580.95.05")
    assert asked[1]["facts"]["compat"]["verdict"] == "ok"


def test_a_node_without_labels_is_said(tmp_path: Path) -> None:
    dump = node_dump(tmp_path, {})
    for name, expected in (("gpu-1", "feature discovery"), ("gpu-2", "not in the input")):
        arguments = ["compat", "--node", name, "--from", dump, "--cuda", "13.0"]
        result = CliRunner().invoke(root, arguments)
        assert isinstance(result.exception, InputError)
        assert expected in str(result.exception)


def test_the_matrix_agrees_with_the_single_answer() -> None:
    result = CliRunner().invoke(root, ["compat", "--matrix", "--gpu", "A100", "-o", "json"])
    cells = json.loads(result.stdout)["matrix"]
    assert cells["535"]["12.8"] == "min"
    assert cells["535"]["13.0"] == "fwd"
    assert cells["560"]["13.0"] == "35"
    assert cells["580"]["12.9"] == "ok"
    assert "450" not in cells
    text = CliRunner().invoke(root, ["compat", "--matrix", "--gpu", "V100"]).stdout
    assert "590" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_matrix_needs_a_gpu() -> None:
    result = CliRunner().invoke(root, ["compat", "--matrix", "--driver", "580"])
    assert isinstance(result.exception, InputError)
