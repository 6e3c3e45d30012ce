"""`gpudoctor check` from the outside: answers, exit status, and one clear line for bad input."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from gpudoctor import cli
from gpudoctor.report import json_schema
from tests import cases_k8s
from tests import kubernetes_objects as k8s
from tests.nccl_logs import Rank, ring, start

SAMPLES = Path(__file__).parents[2] / "samples"
EXPECTED = {
    "trainer-without-rdma": ("trainer-0", ["rdma-not-requested"]),
    "healthy-trainer": ("trainer-0", []),
    "two-causes": ("trainer-0", ["driver-upgrade-in-progress", "missing-toleration"]),
    "operator-stalled": ("trainer-0", ["driver-container-failing"]),
    "lost-gpu": ("trainer-0", ["gpu-unhealthy-shrinks-allocatable"]),
    "admitted-but-fragmented": ("trainer-0", ["gpu-fragmentation"]),
    "port-down-on-its-node": ("w-0", ["nic-port-down"]),
    "model-killed-while-loading": ("llm-0", ["liveness-kills-loading-model"]),
}
SECRET = "hunter2-do-not-print"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.root, ["check", *arguments], prog_name="gpudoctor")


def answer(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "-o", "json")
    decoded: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(decoded, json_schema())
    return decoded


def refusal(result: Result) -> str:
    """The one line that a command which cannot go on says; never a traceback."""
    error = result.exception
    if isinstance(error, SystemExit):
        said = result.stderr.strip().splitlines()
        return said[-1]
    assert type(error).__name__ == "InputError", repr(error)
    message = str(error)
    assert "\n" not in message
    return message


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def pending_pod(**more: Any) -> dict[str, Any]:
    return k8s.pod("train-0", **more)


def test_every_sample_has_its_story() -> None:
    assert {path.stem for path in SAMPLES.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_sample(name: str) -> None:
    pod, roots = EXPECTED[name]
    source = str(SAMPLES / f"{name}.json")
    report = answer("--pod", pod, "--from", source)
    assert report["roots"] == roots
    assert report["unknown"] == []
    errors = [f for f in report["findings"] if f["severity"] in ("error", "critical")]
    assert run("--pod", pod, "--from", source).exit_code == (1 if errors else 0)


def test_same_answer_from_json_yaml_archive_and_standard_input(tmp_path: Path) -> None:
    objects = cases_k8s.load("14-running-but-nccl-on-tcp")["objects"]
    as_list = {"apiVersion": "v1", "kind": "List", "items": objects}
    dumps = {
        "list.json": json.dumps(as_list),
        "list.yaml": yaml.safe_dump(as_list),
        "many.yaml": yaml.safe_dump_all(objects),
        "lines.json": "\n".join(json.dumps(obj) for obj in objects),
    }
    names = {}
    for name, content in dumps.items():
        report = answer("--pod", "llm/ddp-0", "--from", write(tmp_path / name, content))
        names[name] = [finding["id"] for finding in report["findings"]]
    assert len({tuple(found) for found in names.values()}) == 1
    command = [sys.executable, "-m", "gpudoctor", "check", "--pod", "llm/ddp-0", "-o", "json"]
    piped = subprocess.run(
        [*command, "--from", "-"],
        input=dumps["list.yaml"].encode(),
        capture_output=True,
        check=False,
    )
    assert [f["id"] for f in json.loads(piped.stdout)["findings"]] == names["list.json"]


def test_archive_with_texts_beside_it(tmp_path: Path) -> None:
    sample = json.loads((SAMPLES / "trainer-without-rdma.json").read_text())
    log = sample["logs"]["ml/trainer-0/main"].encode()
    sample["logs"]["ml/trainer-0/main"] = {"file": "logs/main.log"}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("bundle.json", json.dumps(sample).encode()), ("logs/main.log", log)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    source = write(tmp_path / "b.tar.gz", gzip.compress(buffer.getvalue()))
    assert answer("--pod", "trainer-0", "--from", source)["roots"] == ["rdma-not-requested"]


def test_dump_and_log_of_several_files_are_put_together(tmp_path: Path) -> None:
    case = cases_k8s.load("15-shm-64mib-default")
    nodes = [obj for obj in case["objects"] if obj["kind"] == "Node"]
    others = [obj for obj in case["objects"] if obj["kind"] != "Node"]
    files = [
        write(tmp_path / "nodes.yaml", yaml.safe_dump_all(nodes)),
        write(tmp_path / "pods.yaml", yaml.safe_dump_all(others)),
        write(tmp_path / "vllm.log", next(iter(case["logs"].values()))),
    ]
    options = [part for name in files for part in ("--from", name)]
    assert answer("--pod", "llm-tp2-0", *options)["roots"] == ["shm-too-small"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"   \n\t\n", "empty"),
        (b'{"apiVersion": "v1", "kind": "Pod", ', "in.put"),
        (b"apiVersion: v1\nkind: Pod\nmetadata: {name: [\n", "in.put"),
        (b'{"schema": "gpudoctor.io/bundle/v1", "objects": 3}', "in.put"),
        (b'{"schema": "gpudoctor.io/bundle/v1", "objects": [', "in.put"),
        (b"\x1f\x8b\x08\x00garbage", "in.put"),
        (b"a: &a [x,x,x,x,x,x,x,x,x]\napiVersion: v1\nkind: Pod\n" + b"".join(
            b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in b"bcdefghi"
        ), "in.put"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(tmp_path: Path, content: bytes, said: str) -> None:
    source = write(tmp_path / "in.put", content)
    result = run("--pod", "trainer-0", "--from", source)
    assert result.exit_code != 0
    assert said in refusal(result)
    assert result.stdout == ""


def test_missing_file_says_so(tmp_path: Path) -> None:
    result = run("--pod", "trainer-0", "--from", str(tmp_path / "gone.json"))
    assert "gone.json" in refusal(result)


def test_pod_that_is_not_there_names_the_near_ones() -> None:
    result = run("--pod", "trainer-O", "--from", str(SAMPLES / "two-causes.json"))
    assert "ml/trainer-0" in refusal(result)


def test_wrong_namespace_is_not_taken_for_the_right_one() -> None:
    result = run(
        "-n", "elsewhere", "--pod", "trainer-0", "--from", str(SAMPLES / "two-causes.json")
    )
    assert "elsewhere/trainer-0 is not in the input" in refusal(result)


def test_two_pods_of_one_name_ask_for_the_namespace(tmp_path: Path) -> None:
    pods = [pending_pod(), pending_pod()]
    pods[1]["metadata"]["namespace"] = "other"
    source = write(tmp_path / "pods.json", "\n".join(map(json.dumps, pods)))
    said = refusal(run("--pod", "train-0", "--from", source))
    assert "other/train-0" in said
    assert (
        answer("-n", "other", "--pod", "train-0", "--from", source)["subject"]["namespace"]
        == "other"
    )


@pytest.mark.parametrize("arguments", [
    ("--pod", "a", "--node", "b"),
    ("--job", "a", "--from", str(SAMPLES / "two-causes.json")),
    ("--pod", "trainer-0", "--select", "XYZ", "--from", str(SAMPLES / "two-causes.json")),
    ("-l", "a=(", "--from", str(SAMPLES / "two-causes.json")),
    ("-l", "app=none-such", "--from", str(SAMPLES / "two-causes.json")),
    ("--node", "none-such", "--from", str(SAMPLES / "two-causes.json")),
])  # fmt: skip
def test_wrong_usage_is_said(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code != 0
    assert refusal(result)


def test_select_and_ignore() -> None:
    source = str(SAMPLES / "two-causes.json")
    only = answer("--pod", "trainer-0", "--from", source, "--select", "SCH")
    without = answer("--pod", "trainer-0", "--from", source, "--ignore", "SCH")
    assert {finding["layer"] for finding in only["findings"]} == {"SCH"}
    assert "SCH" not in {finding["layer"] for finding in without["findings"]}


def test_fail_on() -> None:
    source = str(SAMPLES / "two-causes.json")
    assert run("--pod", "trainer-0", "--from", source, "--fail-on", "critical").exit_code == 0
    assert run("--pod", "trainer-0", "--from", source, "--fail-on", "never").exit_code == 0
    assert run("--pod", "trainer-0", "--from", source).exit_code == 1


def test_all_pods_shows_those_that_are_not_well() -> None:
    unwell = answer("-A", "--from", str(SAMPLES / "two-causes.json"))
    well = answer("-A", "--from", str(SAMPLES / "healthy-trainer.json"))
    assert [child["subject"]["name"] for child in unwell["children"]] == ["trainer-0"]
    assert well["children"] == []
    assert well["verdict"] == "healthy"


def test_all_pods_shows_a_ready_pod_that_fails_all_the_same() -> None:
    source = str(SAMPLES / "trainer-without-rdma.json")
    report = answer("-A", "--from", source)
    assert report["verdict"] == "failing"
    assert {child["subject"]["name"]: child["roots"] for child in report["children"]} == {
        "trainer-0": ["rdma-not-requested"],
        "trainer-1": ["rdma-not-requested"],
    }


def test_no_gpu_pod_is_healthy_only_where_all_pods_were_read(tmp_path: Path) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0"}, "spec": {}}
    dump = write(tmp_path / "dump.json", json.dumps(pod))
    assert answer("-A", "--from", dump)["verdict"] == "unknown"
    whole = {"schema": "gpudoctor.io/bundle/v1", "scope": {"objects": "complete"}, "objects": [pod]}
    bundle = write(tmp_path / "bundle.json", json.dumps(whole))
    assert answer("-A", "--from", bundle)["verdict"] == "healthy"
    assert "No pod that asks for a GPU was read." in run("-A", "--from", bundle).stdout


@pytest.mark.parametrize("content", ["no log of anything\n", "x" * 100_000])
def test_a_text_without_objects_is_refused_and_never_healthy(tmp_path: Path, content: str) -> None:
    source = write(tmp_path / "some.log", content)
    for arguments in ([], ["-A"]):
        assert "`gpudoctor explain FILE`" in refusal(run(*arguments, "--from", source))


def test_labels_that_no_pod_has() -> None:
    source = str(SAMPLES / "trainer-without-rdma.json")
    said = refusal(run("-l", "app=none", "-n", "ml", "--from", source))
    assert said == "no pod has the labels app=none in namespace ml"


def test_node_by_itself() -> None:
    report = answer("--node", "gpu-a51", "--from", str(SAMPLES / "operator-stalled.json"))
    assert report["roots"] == ["driver-container-failing"]
    lost = answer("--node", "gpu-a03", "--from", str(SAMPLES / "lost-gpu.json"))
    assert lost["roots"] == ["gpu-unhealthy-shrinks-allocatable"]
    well = answer("--node", "gpu-a30", "--from", str(SAMPLES / "healthy-trainer.json"))
    assert (well["verdict"], well["roots"]) == ("healthy", [])


def test_pod_without_status_is_unknown_with_status_three(tmp_path: Path) -> None:
    pod = pending_pod()
    del pod["status"]
    source = write(tmp_path / "pod.json", json.dumps(pod))
    result = run("--pod", "train-0", "--from", source, "-o", "json")
    assert json.loads(result.stdout)["verdict"] == "unknown"
    assert result.exit_code == 3


ODD = [None, [], {}, "text", 3, True, [None, 7, "x"], {"a": None}]


@pytest.mark.parametrize("odd", ODD, ids=[json.dumps(odd) for odd in ODD])
@pytest.mark.parametrize("name", cases_k8s.NAMES)
def test_any_field_may_be_of_any_shape(name: str, odd: Any) -> None:
    case = cases_k8s.load(name)
    subject = cases_k8s.subject_of(case)
    for obj in case["objects"]:
        data = obj["metadata"]
        is_subject = obj["kind"] == "Pod" and (data.get("namespace"), data["name"]) == subject
        for part in ("spec", "status", "data", "labels"):
            if isinstance(obj.get(part), dict):
                keys = list(obj[part])
                for key in keys[:: 2 if is_subject else 1]:
                    obj[part][key] = odd
    report = cases_k8s.ask(case)
    assert not [each for each in report.unknown if each.what.startswith("check ")]


def test_secrets_and_terminal_escapes_do_not_get_out(tmp_path: Path) -> None:
    case = cases_k8s.load("14-running-but-nccl-on-tcp")
    for obj in case["objects"]:
        if obj["kind"] == "Pod":
            obj["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": SECRET}]
            obj["metadata"]["annotations"] = {"note": SECRET}
    key = next(iter(case["logs"]))
    coloured = [f"\x1b[31m{line}\x1b[0m" for line in case["logs"][key].splitlines()]
    case["logs"][key] = "\n".join(["\x1b]0;evil\x07 \u202e", *coloured])
    node = next(obj for obj in case["objects"] if obj["kind"] == "Node")
    node["metadata"]["labels"]["nvidia.com/gpu.product"] = "\x1b[2J\u202eH100"
    bundle = {"schema": "gpudoctor.io/bundle/v1", "scope": {"objects": "complete"},
              "objects": case["objects"], "logs": case["logs"]}  # fmt: skip
    source = write(tmp_path / "b.json", json.dumps(bundle))
    result = run("--pod", "ddp-0", "--from", source)
    assert "does not ask for the RDMA" in re.sub(r"\s+", " ", result.stdout)
    assert SECRET not in result.stdout
    assert "\x1b" not in result.stdout
    assert "\u202e" not in result.stdout
    assert SECRET not in run("--pod", "ddp-0", "--from", source, "-o", "json").stdout


def test_long_messages_do_not_drown_the_answer(tmp_path: Path) -> None:
    case = cases_k8s.load("04-containers-add-up-past-node")
    for obj in case["objects"]:
        if obj["kind"] == "Event":
            obj["message"] += " padding" * 2000
    bundle = {"schema": "gpudoctor.io/bundle/v1", "scope": {"objects": "complete"},
              "objects": case["objects"]}  # fmt: skip
    source = write(tmp_path / "b.json", json.dumps(bundle))
    result = run("--pod", "pipeline-0", "--from", source)
    assert len(result.stdout) < 6000
    assert "largest suitable node" in re.sub(r"\s+", " ", result.stdout)


def job_of(gdr: dict[str, bool]) -> dict[str, object]:
    """Two and more pods of a job on nodes of their own, with NCCL's log of each."""
    objects: list[dict[str, object]] = []
    logs = {}
    ranks = [Rank(host, number) for number, host in enumerate(gdr)]
    for rank in ranks:
        labels = {"batch.kubernetes.io/job-name": "train"}
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{rank.host}-x7k2p", "namespace": "llm", "labels": labels},
                "spec": {
                    "nodeName": f"gpu-{rank.rank}",
                    "hostname": rank.host,
                    "containers": [{"name": "main"}],
                },
                "status": {"phase": "Running"},
            }
        )
        via = "NET/IB/0/GDRDMA" if gdr[rank.host] else "NET/IB/0"
        own = f"{rank.host}:"
        said = [line for line in start(ranks) + ring(ranks, via) if line.startswith(own)]
        logs[f"llm/{rank.host}-x7k2p/main"] = "\n".join(said)
    return {"schema": "gpudoctor.io/bundle/v1", "objects": objects, "logs": logs}


def test_what_nccl_says_of_a_job_is_said_once_and_names_the_pod_and_node(tmp_path: Path) -> None:
    names = [f"train-{number}" for number in range(8)]
    bundle = job_of({name: name != "train-7" for name in names})
    report = answer("--job", "job/train", "--from", write(tmp_path / "b.json", json.dumps(bundle)))
    (found,) = [f for f in report["findings"] if f["name"] == "gdr-partial"]
    assert "train-7 is Pod/train-7-x7k2p on Node/gpu-7" in found["detail"]
    assert "gpu-6" not in found["detail"]
    assert found["subject"]["name"] == "train"
    assert report["facts"]["nccl"]["ranks"] == 8
    said = [f["name"] for child in report["children"] for f in child["findings"]]
    assert len(report["children"]) == 8
    assert not [name for name in said if name.startswith(("gdr", "nccl"))]


def test_a_job_whose_hosts_are_alike_has_nothing_said_of_it(tmp_path: Path) -> None:
    bundle = job_of({"train-0": True, "train-1": True})
    report = answer("--job", "job/train", "--from", write(tmp_path / "b.json", json.dumps(bundle)))
    assert report["findings"] == []


def test_a_job_that_has_ended_has_no_pods_any_more(tmp_path: Path) -> None:
    def ask(*status: dict[str, str], more: tuple[Any, ...] = ()) -> dict[str, Any]:
        job = k8s.custom("batch/v1", "Job", "run", "llm", status={"conditions": list(status)})
        whole = {"objects": "complete"}
        bundle = {
            "schema": "gpudoctor.io/bundle/v1",
            "scope": whole,
            "objects": [job, *(k8s.event(job, *one) for one in more)],
        }
        return answer("--job", "job/run", "--from", write(tmp_path / "b", json.dumps(bundle)))

    refused = ("FailedCreate", 'pods "run-1" is forbidden: violates PodSecurity "restricted:x": y')
    well = k8s.condition("Complete", "True", "CompletionsReached")
    assert ask(well)["verdict"] == "healthy"
    assert ask(well, more=(refused,))["verdict"] == "healthy"
    late = ask(k8s.condition("Failed", "True", "DeadlineExceeded", "active longer than allowed"))
    assert late["roots"] == ["deadline-exceeded"]
    failed = ask(k8s.condition("Failed", "True", "BackoffLimitExceeded", "has reached it"))
    assert failed["verdict"] == "unknown"
    assert "BackoffLimitExceeded" in failed["unknown"][0]["why"]


def test_a_failed_attempt_of_a_job_that_completed_is_past(tmp_path: Path) -> None:
    job = k8s.custom(
        "batch/v1",
        "Job",
        "run",
        "llm",
        status={"conditions": [k8s.condition("Complete", "True", "CompletionsReached")]},
    )
    tags = {"labels": {"job-name": "run"}, "ownerReferences": [k8s.owner("Job", "run")]}
    pods = [
        k8s.pod(f"run-{phase.lower()}", "llm", phase=phase, node="gpu-1", meta=tags)
        for phase in ("Failed", "Succeeded")
    ]
    bundle = {
        "schema": "gpudoctor.io/bundle/v1",
        "scope": {"objects": "complete"},
        "objects": [job, k8s.node(), *pods],
    }
    source = write(tmp_path / "b.json", json.dumps(bundle))
    assert answer("--job", "job/run", "--from", source)["verdict"] == "healthy"
    everyone = answer("-A", "--from", source)
    assert (everyone["verdict"], everyone["facts"]["pods"]["seen"]) == ("healthy", 2)
    assert answer("--pod", "llm/run-failed", "--from", source)["verdict"] == "failing"


def test_a_job_that_is_not_let_in_has_no_pods_and_is_explained(tmp_path: Path) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "held", "namespace": "llm", "uid": "u1"},
        "spec": {"suspend": True},
    }
    workload = k8s.custom(
        "kueue.x-k8s.io/v1beta2", "Workload", "w", "llm", spec={"queueName": "gone"}
    )
    workload["metadata"]["ownerReferences"] = [k8s.owner("Job", "held", uid="u1")]
    free = job | {"metadata": {"name": "free", "namespace": "llm"}, "spec": {}}
    paused = job | {"metadata": {"name": "paused", "namespace": "llm"}}
    bundle = {
        "schema": "gpudoctor.io/bundle/v1",
        "scope": {"objects": "complete"},
        "objects": [job, workload, free, paused],
    }
    source = write(tmp_path / "b.json", json.dumps(bundle))
    report = answer("--job", "Job/held", "--from", source)
    assert report["roots"]
    assert report["unknown"] == []
    for name in ("free", "paused"):
        report = answer("--job", f"job/{name}", "--from", source)
        assert report["findings"] == []
        assert [each["what"] for each in report["unknown"]] == ["its pods"]
    missing = run("--job", "job/other", "--from", source)
    assert "no pod of job other is in the input" in str(missing.exception)
