"""`explain` on kernel logs and runtime errors: recognised among all formats, named, published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpudoctor import readings
from gpudoctor.cli import root
from gpudoctor.errors import InputError
from gpudoctor.sources.text import open_input

CASES = Path(__file__).parent.parent / "cases" / "node"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def explain(tmp_path: Path, text: str) -> tuple[int, dict[str, Any]]:
    path = tmp_path / "input"
    path.write_text(text)
    result = CliRunner().invoke(root, ["explain", str(path), "-o", "json"])
    return result.exit_code, json.loads(result.stdout)


def kind(tmp_path: Path, text: str) -> str:
    path = tmp_path / "input"
    path.write_text(text)
    with open_input(str(path)) as opened:
        return readings.recognise(opened).name


@pytest.mark.parametrize(
    "text",
    [
        XID,
        f"[51233.900133] {XID}\n",
        "[    0.000000] Linux version 6.8.0-31-generic\n[    0.000001] BIOS-provided RAM map:\n",
        "[Wed Mar 11 06:20:17 2026] mlx5_core 0000:9a:00.0 ens10f0np0: Link up\n",
        "2026-03-04T02:11:09,118231+00:00 mlx5_core 0000:9a:00.0: Link up\n",
        "kern  :info  : [    0.000000] Linux version 6.8.0-31-generic\n",
        "<6>[    0.000000] Linux version 6.8.0-31-generic\n",
        "6,0,0,-;Linux version 6.8.0-31-generic\n",
        "Mar 11 06:20:17 gpu-node kernel: mlx5_core 0000:9a:00.0: Link up\n",
        "2026-03-11T06:20:17+0000 gpu-node kernel: mlx5_core 0000:9a:00.0: Link up\n",
        '{"MESSAGE":"x","_TRANSPORT":"kernel","_HOSTNAME":"n"}\n',
        '{"priority":6,"sequence":1188,"sec":700,"usec":1,"msg":"mlx5_core: Link up"}\n',
        "10.0.0.9: kern:    info: [2026-04-22T21:20:00.19Z]: nvidia-nvlink: is initialized\n",
        "NVRM: API mismatch: the client has the version 470.82.01, but\n"
        "NVRM: this kernel module has the version 470.57.02.  Please\n",
    ],
)
def test_a_kernel_log_is_recognised(tmp_path: Path, text: str) -> None:
    assert kind(tmp_path, text) == "kernel-log"


@pytest.mark.parametrize(
    "text",
    ["Error 803: system has unsupported display driver / cuda driver combination", "GPU is lost"],
)
def test_a_runtime_error_is_recognised(tmp_path: Path, text: str) -> None:
    assert kind(tmp_path, text) == "runtime-error"


def test_a_log_with_a_hint_of_cuda_keeps_its_own_format(tmp_path: Path) -> None:
    nccl = "".join(
        f"node-1:4711:4712 [{gpu}] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
        for gpu in range(4)
    )
    error = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
    assert kind(tmp_path, nccl + error) == "nccl"


def test_the_host_of_the_log_is_the_subject(tmp_path: Path) -> None:
    status, report = explain(tmp_path, f"Mar 11 06:20:17 gpu-node kernel: {XID}\n")
    assert status == 1
    assert report["subject"]["name"] == "gpu-node"
    assert report["findings"][0]["subject"] == {
        "kind": "Host", "name": "gpu-node", "namespace": None, "device": "0000:3b:00",
    }  # fmt: skip
    assert report["facts"]["kernel"]["gpu_actions"] == {"0000:3b:00": "reboot"}


def test_a_quiet_log_is_healthy(tmp_path: Path) -> None:
    status, report = explain(tmp_path, "[    0.000000] Linux version 6.8.0-31-generic\n")
    assert (status, report["verdict"]) == (0, "healthy")
    assert report["facts"]["kernel"] == {"events": [], "gpu_actions": {}, "node_action": "none"}


@pytest.mark.parametrize("path", sorted(CASES.glob("kmsg-*.log")), ids=lambda path: path.stem)
def test_published_logs(tmp_path: Path, path: Path) -> None:
    expected = json.loads(path.with_suffix(".json").read_text())
    _, report = explain(tmp_path, path.read_text())
    found = report["facts"]["kernel"]["events"]
    for want in expected["events"]:
        assert any({key: event.get(key) for key in want} == want for event in found)
    assert set(expected.get("other_findings", [])) <= {f["name"] for f in report["findings"]}
    if path.stem.startswith("kmsg-healthy"):
        assert (report["verdict"], report["roots"]) == ("healthy", [])
    assert not report["unknown"]


@pytest.mark.parametrize(
    "case", json.loads((CASES / "runtime-errors.json").read_text()), ids=lambda c: c["expect"]["id"]
)
def test_published_errors(tmp_path: Path, case: dict[str, Any]) -> None:
    status, report = explain(tmp_path, case["text"] + "\n")
    assert report["roots"] == [case["expect"]["id"]]
    assert status == (0 if case["expect"].get("severity") == "warning" else 1)
    # A table of nvidia-smi leaves out what -q has.
    assert not report["unknown"] or report["subject"]["kind"] == "GPUs"


def test_a_program_that_writes_through_the_kernels_log_is_read_as_the_program(
    tmp_path: Path,
) -> None:
    line = "[    5.879228] {}: could not insert 'nvidia': Operation not permitted\n"
    assert explain(tmp_path, line.format("driverdog[2088]"))[1]["roots"] == ["driver-not-loaded"]
    assert explain(tmp_path, line.format("modprobe"))[1]["facts"].get("kernel") is not None
    crash = "[ 9.100000] python3[4711]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so\n"
    assert explain(tmp_path, crash)[1]["facts"].get("kernel") is not None


def test_nccl_tests_that_never_printed_a_table_are_read_as_nccl_logs() -> None:
    log = CASES.parent / "nccl" / "08-memlock-limit.log"
    result = CliRunner().invoke(root, ["explain", str(log), "-o", "json"])
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["roots"]) == (1, ["rdma-registration-enomem"])


def test_a_bundle_is_read_as_such_however_many_log_lines_are_in_it() -> None:
    sample = CASES.parents[2] / "samples" / "trainer-without-rdma.json"
    answer = json.loads(CliRunner().invoke(root, ["explain", str(sample), "-o", "json"]).stdout)
    assert answer["subject"]["kind"] == "Pods"
    assert answer["children"][0]["roots"] == ["rdma-not-requested"]


def test_a_kernel_log_without_a_host_name_is_not_said_to_be_of_this_host(tmp_path: Path) -> None:
    _, answer = explain(tmp_path, f"[51233.900133] {XID}\n")
    assert answer["subject"]["kind"] == "KernelLog"


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("RuntimeError: DataLoader worker (pid 412) is killed by signal: Bus error. It is possible"
         " that dataloader's workers are out of shared memory.",
         "/dev/shm of the program is too small"),
        ("ValueError: World size (8) is larger than the number of available GPUs (4) in this node.",
         "the program is told to use 8 GPUs and has 4"),
        ("Error: NotEnoughCUDADevices(`sharded` is true but only found 1 CUDA devices)",
         "the program is told to use another number of GPUs and has 1"),
        ("I1105 1 health.go:186] XidCriticalError: Xid=79 on Device=GPU-1a2b; marking device",
         "GPU GPU-1a2b has fallen off the bus"),
        ("XidCriticalError: Xid=95 on Device=GPU-1a2b, the device will go unhealthy.",
         "Uncorrectable memory error on GPU GPU-1a2b"),
        ("16.00 GiB KV cache is needed, which is larger than the available KV cache memory (8 GiB)",
         "GPU memory is exhausted"),
        ("RuntimeError: Failed to infer device type", "The driver offers no GPU"),
        ("ibv_reg_mr failed: Cannot allocate memory",
         "RDMA memory cannot be registered on this host (ibv_reg_mr: Cannot allocate memory)"),
    ],
)  # fmt: skip
def test_a_program_says_what_it_was_not_given(tmp_path: Path, text: str, title: str) -> None:
    status, report = explain(tmp_path, f"Traceback (most recent call last):\n{text}\n")
    assert (status, [finding["title"] for finding in report["findings"]]) == (1, [title])


@pytest.mark.parametrize(
    "text",
    [
        "(worker pid=3) INFO tensor_parallel_size=4, 4 GPUs found, world size 4",
        "WARNING tensor_parallel_size=16 is bigger than a reserved number of GPUs (8 GPUs)",
        "INFO: /dev/shm has 16 GiB of shared memory",
        "health.go:150] Skipping event {Device:{Handle:0xc} EventType:8 EventData:31}",
    ],
)
def test_a_program_that_has_what_it_wants(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="not recognised"):
        kind(tmp_path, text)
