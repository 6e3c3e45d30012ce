"""What every reporting command prints agrees with the published schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from gpudoctor import cli, report
from tests.cli.running import run

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "nodeagent" / "gpudoctor" / "report.schema.json"
SAMPLES = ROOT / "samples"
CASES = ROOT / "tests" / "cases" / "node"
DESCRIBED = ROOT / "tests" / "data" / "describe"

# Each command that takes -o stands here once at least; a new one is added with an input of its own.
RUNS = [
    ["check", "--pod", "trainer-0", "--from", f"{SAMPLES}/trainer-without-rdma.json"],
    ["check", "-A", "--from", f"{SAMPLES}/two-causes.json"],
    ["nccl", str(ROOT / "tests" / "cases" / "nccl" / "02-ib-disabled-by-env.log")],
    ["topo", "--from", f"{CASES}/topo-07-l40s-4gpu-nic-on-other-socket.txt"],
    ["preflight", "--require", "shm=64Ki"],
    ["fleet", "--from", str(ROOT / "tests" / "data" / "fleet.json")],
    ["labels", "--node", "gpu-a17", "--from", f"{SAMPLES}/trainer-without-rdma.json"],
    ["compat", "--driver", "535.183.06", "--cuda", "13.0.2", "--gpu", "Tesla T4"],
    *(["explain", str(path)] for path in sorted(DESCRIBED.glob("*.txt"))),
    ["explain", *map(str, sorted(DESCRIBED.glob("*.txt")))],
    *(["explain", str(path)] for path in sorted(SAMPLES.glob("*.json"))),
]


def test_the_published_schema_is_that_of_the_types() -> None:
    of_the_types = json.loads(json.dumps(report.json_schema()))
    assert json.loads(PUBLISHED.read_text()) == of_the_types, "run `make schema`"


def test_the_published_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(report.json_schema())


def test_every_reporting_command_is_run_here() -> None:
    context = cli.root.make_context("gpudoctor", ["x"], resilient_parsing=True)
    reporting = set()
    for name in cli.root.list_commands(context):
        found = cli.root.get_command(context, name)
        assert found is not None
        if "output" in {parameter.name for parameter in found.params}:
            reporting.add(name)
    assert reporting == {arguments[0] for arguments in RUNS}


@pytest.mark.parametrize("arguments", RUNS, ids=lambda arguments: " ".join(arguments)[-60:])
def test_output_agrees_with_the_schema(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    result = run(monkeypatch, [*arguments, "-o", "json"])
    assert result.status in (0, 1, 3), result.err
    answer = json.loads(result.out)
    jsonschema.validate(answer, report.json_schema(), jsonschema.Draft202012Validator)
    ids = [finding["id"] for finding in answer["findings"]]
    assert set(answer["root_ids"]) <= set(ids)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("output", ["text", "junit", "html"])
def test_the_other_formats_say_the_same(monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    arguments = RUNS[0]
    expected = json.loads(run(monkeypatch, [*arguments, "-o", "json"]).out)
    result = run(monkeypatch, [*arguments, "-o", output])
    [root] = [f for f in expected["findings"] if f["id"] in expected["root_ids"]]
    assert root["runbook"] in result.out
    assert " ".join(root["title"].split()) in " ".join(result.out.split())
