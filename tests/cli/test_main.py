"""The command line as a whole: help, version, completion, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudoctor import __version__
from tests.cli.running import run

DESCRIBED = Path(__file__).parents[1] / "data" / "describe"
POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trainer-0", "namespace": "ml"}}


def test_without_arguments_it_shows_help_as_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(monkeypatch, [])
    assert result.status == 2
    assert "Commands:" in result.out + result.err


def test_help_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Commands:" in run(monkeypatch, ["--help"]).out
    assert run(monkeypatch, ["--version"]) == (0, f"gpudoctor, version {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("gpudoctor run", 1, "plain,runbook"),
        ("gpudoctor runbook rdma-not", 2, "plain,rdma-not-requested"),
        ("gpudoctor explain --kind kubectl-d", 3, "plain,kubectl-describe"),
        ("gpudoctor check -o ht", 3, "plain,html"),
    ],
)
def test_shell_completion(
    monkeypatch: pytest.MonkeyPatch, words: str, position: int, expected: str
) -> None:
    monkeypatch.setenv("_GPUDOCTOR_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(position))
    assert expected in run(monkeypatch, []).out.splitlines()


BAD = [
    ("", "is empty"),
    ("\0\0\0", "binary"),
    ("NAME        READY   STATUS\ntrainer-0   0/1     Pending\n", "the table that `kubectl get`"),
    ("Name:  trainer-0\nNamespace:  ml\n", "`gpudoctor explain` reads that"),
    ("kind: Pod\napiVersion: v1\nmetadata: !!python/name:os.system x\n", "tag"),
    ("kind: Pod\napiVersion: v1\n\tmetadata:\n", "a tab"),
    ('{"kind": "Pod", "apiVersion": "v1", "metadata": {', "cut off"),
    ('{"kind": "Status", "apiVersion": "v1", "message": "pods is forbidden"}', "forbidden"),
    (json.dumps(POD | {"metadata": {"name": "trainer-10"}}), "near it"),
    (
        "\n".join(
            json.dumps(POD | {"metadata": {"name": "trainer-0", "namespace": namespace}})
            for namespace in "ab"
        ),
        "more than once",
    ),
]


@pytest.mark.parametrize(("content", "says"), BAD, ids=range(len(BAD)))
def test_check_says_what_is_wrong_with_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "dump"
    path.write_text(content)
    result = run(monkeypatch, ["check", "--pod", "trainer-0", "--from", str(path)])
    assert (result.status, result.out) == (2, "")
    assert says in result.err
    assert result.err.startswith("gpudoctor: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [("", "is empty"), ("lorem ipsum\n", "not recognised"), (None, "No such file")],
)
def test_explain_says_what_is_wrong_with_its_input(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_text(content)
    result = run(monkeypatch, ["explain", str(path)])
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert says in result.err


HOSTILE = "\x1b[2J\x1b]0;x\x07\u202eevil" + "y" * 10_000
SHAPES: list[dict[str, object]] = [
    {},
    {"spec": None, "status": None},
    {"spec": {"containers": None, "tolerations": None}, "status": {"conditions": None}},
    {"spec": {"containers": [None, 1, "x"]}, "status": {"containerStatuses": [None]}},
    {"spec": "text", "status": ["list"]},
    {"metadata": {"name": "trainer-0", "namespace": "ml", "labels": None, "annotations": 7}},
    {
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "env": [{"name": "HF_TOKEN", "value": "hunter2-secret"}],
                    "args": ["--api-key", "hunter2-secret"],
                    "resources": {
                        "limits": {"nvidia.com/gpu": 8, "cpu": "8k", "memory": "1e3", "x/y": "oops"}
                    },
                }
            ]
        },
        "status": {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": f"0/1 nodes are available: 1 {HOSTILE}",
                }
            ],
        },
    },
]


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("shape", SHAPES, ids=range(len(SHAPES)))
def test_any_shape_of_a_pod_gets_an_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shape: dict[str, object], output: str
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(POD | shape))
    result = run(monkeypatch, ["check", "--pod", "trainer-0", "--from", str(path), "-o", output])
    assert (result.status in (0, 1, 3), result.err) == (True, "")
    assert "the check failed" not in result.out
    assert "hunter2" not in result.out
    if output == "text":
        assert all(char == "\n" or char.isprintable() for char in result.out)
        assert len(result.out) < 20_000


def test_explain_of_several_files_is_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(DESCRIBED / name) for name in ("big70b-0.pod.txt", "v1.20.pod.txt")]
    answer = json.loads(run(monkeypatch, ["explain", *files, "-o", "json"]).out)
    assert [child["subject"]["name"] for child in answer["children"]] == ["big70b-0", "bert-0"]
    text = run(monkeypatch, ["explain", *files]).out
    assert text.startswith("FAILING  Files 2 texts\n")
    assert text.count("Root cause: ") == 2


def test_explain_of_several_files_goes_on_after_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    files = [str(empty), str(DESCRIBED / "v1.20.pod.txt"), str(tmp_path / "absent")]
    result = run(monkeypatch, ["explain", *files, "-o", "json"])
    assert json.loads(result.out)["subject"]["name"] == "bert-0"
    first, second = result.err.splitlines()
    assert (result.status, "empty" in first, "absent" in second) == (2, True, True)


def test_names_from_outside_never_reach_the_terminal_raw(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(POD | {"metadata": {"name": "trainer-1\x1b]0;x\x07\x1b[31m"}}))
    result = run(monkeypatch, ["check", "--pod", "trainer-0", "--from", str(path)])
    assert "near it: default/trainer-1" in result.err
    assert result.err.strip().isprintable()


@pytest.mark.parametrize("option", ["--pod", "--node", "-l", "--job"])
def test_an_empty_name_is_not_a_question_about_this_host(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    result = run(monkeypatch, ["check", option, ""])
    assert (result.status, result.out) == (2, "")
    assert "is empty" in result.err


def test_host_root_has_to_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for arguments in (["check"], ["topo"], ["bundle", str(tmp_path / "b.json")]):
        result = run(monkeypatch, [*arguments, "--host-root", str(tmp_path / "absent")])
        assert (result.status, "does not exist" in result.err) == (2, True)


SAMPLE = str(Path(__file__).parents[2] / "samples" / "trainer-without-rdma.json")
CHECK = ("check", "--pod", "trainer-0", "--from", SAMPLE)


def started(*arguments: str, **how: Any) -> subprocess.CompletedProcess[bytes]:
    program = [sys.executable, "-m", "gpudoctor", *arguments]
    return subprocess.run(program, stderr=subprocess.PIPE, check=False, timeout=60, **how)


@pytest.mark.parametrize("output", ["text", "json", "junit", "html"])
def test_a_reader_that_goes_away_does_not_change_the_status(output: str) -> None:
    for arguments, status in (((*CHECK, "-o", output), 1), (("runbook",), 0), (("--help",), 0)):
        reader, writer = os.pipe()
        os.close(reader)
        ended = started(*arguments, stdout=writer)
        os.close(writer)
        assert (ended.returncode, ended.stderr) == (status, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [CHECK, ("runbook",), ("--help",)])
def test_standard_output_that_takes_no_more(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = started(*arguments, stdout=full)
    expected = b"gpudoctor: standard output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr) == (2, expected)


@pytest.mark.parametrize("output", ["text", "json", "junit", "html"])
def test_closed_standard_output_still_gives_the_status(output: str) -> None:
    ended = started(*CHECK, "-o", output, preexec_fn=lambda: os.close(1))
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_an_interrupt_during_the_start_ends_without_a_traceback() -> None:
    interrupted = (
        "import builtins, signal, sys; load = builtins.__import__\n"
        "def interrupting(name, *rest, **more):\n"
        "    if name == 'click': signal.raise_signal(signal.SIGINT)\n"
        "    return load(name, *rest, **more)\n"
        "from gpudoctor.__main__ import start\n"
        "builtins.__import__ = interrupting\n"
        "start()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", interrupted], capture_output=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
