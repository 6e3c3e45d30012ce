"""`check` run on the node itself: the cluster's objects and this machine in one answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpudoctor import cli
from tests import cases_joined
from tests.machines import gpu_node, on_disk
from tests.sources.kubernetes.api_server import ApiServer, serving
from tests.sources.kubernetes.test_gather import World

BOOT = "5f0d3f8e-6a55-4a3e-9c0e-0f8f4f0f2a11"
BOOT_FILE = "proc/sys/kernel/random/boot_id"


def case() -> cases_joined.Case:
    found = cases_joined.load("01-memlock-seen-in-the-process")
    for obj in found["objects"]:
        if obj["kind"] == "Node" and obj["metadata"]["name"] == "gpu-1":
            obj["status"]["nodeInfo"]["bootID"] = BOOT
    return found


@pytest.fixture
def server() -> Iterator[ApiServer]:
    found = case()
    with serving(World(found["objects"], found["logs"])) as running:
        yield running


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The node's machine, its root mounted somewhere as the agent has it."""
    root = tmp_path / "host"
    tree = gpu_node() | case()["hosts"]["gpu-1"]["tree"]
    (root / "proc/4242/root/dev/infiniband").mkdir(parents=True)
    files = {
        path: entry
        for path, entry in tree.items()
        if path.startswith("/") and (isinstance(entry, str) or "link" in entry)
    }
    on_disk(files | {f"/{BOOT_FILE}": f"{BOOT}\n"}, root)
    (root / "proc/4242/root/dev/nvidia0").touch()
    for folder in ("proc/4242/root/dev/infiniband", "dev/infiniband"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "uverbs0").touch()
    return root


def ask(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli.root, [*arguments, "-o", "json"], prog_name="gpudoctor")
    assert result.exit_code in (0, 1), result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def check(server: ApiServer, root: Path, *target: str) -> dict[str, Any]:
    return ask("check", *target, "--server", server.url, "--host-root", str(root))


def test_the_pods_machine_is_looked_at(server: ApiServer, machine: Path) -> None:
    answer = check(server, machine, "--pod", "train/w-0")
    assert answer["roots"] == ["missing-ipc-lock"]
    assert "memlock-too-low" in {finding["name"] for finding in answer["findings"]}
    assert answer["facts"]["on_node"]["gpus"] == ["0000:13:00.0"]
    node = check(server, machine, "--node", "gpu-1")
    assert node["facts"]["host"]["driver"] == "580.126.09"
    assert [child["subject"]["name"] for child in node["children"]] == ["w-0"]


@pytest.mark.parametrize(
    ("path", "content"),
    [(BOOT_FILE, "of another machine\n"), ("proc/1/comm", "python3\n")],
    ids=["another machine", "a container on it"],
)
def test_another_machine_is_not_taken_for_it(
    server: ApiServer, machine: Path, path: str, content: str
) -> None:
    (machine / path).write_text(content)
    answer = check(server, machine, "--pod", "train/w-0")
    assert "on_node" not in answer["facts"]
    assert "memlock-too-low" not in {finding["name"] for finding in answer["findings"]}


@pytest.mark.parametrize("redacted", [True, False])
@pytest.mark.parametrize("target", ["pod", "node"])
def test_a_bundle_replays_what_live_said(
    server: ApiServer, machine: Path, tmp_path: Path, target: str, redacted: bool
) -> None:
    what = {"pod": ("--pod", "train/w-0"), "node": ("--node", "gpu-1")}[target]
    file = str(tmp_path / "bundle.json")
    options = ["bundle", *what, "--server", server.url, "--host-root", str(machine), file]
    result = CliRunner().invoke(
        cli.root, [*options, *([] if redacted else ["--no-redact"])], prog_name="gpudoctor"
    )
    assert result.exit_code == 0, result.output
    live = check(server, machine, *what)
    if redacted and target == "node":
        recorded = json.loads(Path(file).read_text())
        what = ("--node", next(o["metadata"]["name"] for o in recorded["objects"]))
    replayed = ask("check", *what, "--from", file)
    said = [(f["id"], f["severity"], f["caused_by"]) for f in live["findings"]]
    again = [(f["id"], f["severity"], f["caused_by"]) for f in replayed["findings"]]
    if not redacted:
        assert again == said
    assert (replayed["verdict"], replayed["roots"]) == (live["verdict"], live["roots"])
    assert len(again) == len(said)
    assert replayed["unknown"] == live["unknown"] or redacted
