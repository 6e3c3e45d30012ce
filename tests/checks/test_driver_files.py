"""The driver's device nodes and the CDI specs: what does not fit, and what does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor import diagnosis, registry
from gpudoctor.facts.node import driver_files, machine
from gpudoctor.report import Finding, Severity, Subject
from gpudoctor.sources.host.recorded import RecordedHost
from tests.machines import gpu_node

DRIVER = "580.126.09"  # of `gpu_node`
GPUS = [f"nvidia{index}" for index in range(8)]
NODES = ["null", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *GPUS]
SPEC = "/var/run/cdi/nvidia.yaml"
NAMES = ("nvidia-uvm-missing", "cdi-spec-stale")


def spec(version: str = DRIVER, gpus: list[str] | None = None, kind: str = "nvidia.com/gpu") -> str:
    """Return a CDI spec as `nvidia-ctk cdi generate` writes it."""
    devices = "".join(
        f'- containerEdits:\n    deviceNodes:\n    - path: /dev/{name}\n  name: "{number}"\n'
        for number, name in enumerate(GPUS if gpus is None else gpus)
    )
    return (
        f"---\ncdiVersion: 0.5.0\nkind: {kind}\ndevices:\n{devices}containerEdits:\n"
        "  deviceNodes:\n  - path: /dev/nvidiactl\n  - path: /dev/nvidia-uvm\n  mounts:\n"
        f"  - containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{version}\n"
        f"    hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{version}\n"
    )


def in_json(version: str) -> str:
    library = f"/usr/lib64/libnvidia-ml.so.{version}"
    return json.dumps(
        {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
         "containerEdits": {"mounts": [{"hostPath": library, "containerPath": library}]}},
        indent=2,
    )  # fmt: skip


def tree(nodes: list[str] | None = None, **files: str) -> dict[str, Any]:
    found = gpu_node() | {"/dev": {"dir": NODES if nodes is None else nodes}}
    found |= {"/sys/module/nvidia_uvm": {"dir": ["refcnt"]}}
    for path in ("/etc/cdi", "/var/run/cdi", "/run/cdi"):
        found[path] = {"errno": "ENOENT"}
    return found | files


def placed(path: str, content: str) -> dict[str, Any]:
    folder, _, name = path.rpartition("/")
    return {folder: {"dir": [name]}, path: content}


def findings(found: dict[str, Any]) -> list[Finding]:
    facts = machine.read(RecordedHost(found, ()), Subject("Host", "test"))
    answer = diagnosis.diagnose(registry.load(), [facts])
    return [finding for finding in answer.findings if finding.name in NAMES]


def names(found: dict[str, Any]) -> list[str]:
    return [finding.name for finding in findings(found)]


def test_a_whole_host_is_well() -> None:
    assert names(tree()) == []
    assert names(tree() | placed(SPEC, spec())) == []


WITHOUT = [name for name in NODES if not name.startswith("nvidia-uvm")]


@pytest.mark.parametrize(
    ("module", "severity", "why"),
    [
        ({"errno": "ENOENT"}, Severity.INFO, "the kernel module nvidia_uvm is not loaded"),
        ({"dir": []}, Severity.WARNING, "nvidia_uvm is loaded, and nobody made its node"),
        ({"errno": "EACCES"}, Severity.INFO, "is not known"),
    ],
)
def test_cudas_own_device_is_missing(module: dict[str, Any], severity: Severity, why: str) -> None:
    (found,) = findings(tree(WITHOUT) | {"/sys/module/nvidia_uvm": module})
    assert (found.name, found.severity) == ("nvidia-uvm-missing", severity)
    assert why in found.title


@pytest.mark.parametrize(
    "found",
    [
        tree(["null"]),  # no driver, or a container without a GPU
        tree(GPUS),
        tree(WITHOUT) | {"/dev": {"errno": "EACCES"}},
        tree(WITHOUT) | {"/proc/1/cgroup": "0::/kubepods/pod1/c1\n", "/proc/1/comm": "python\n"},
    ],
    ids=["no driver", "no control device", "may not be listed", "in a container"],
)
def test_whether_it_is_missing_cannot_be_told_or_does_not_matter(found: dict[str, Any]) -> None:
    assert names(found | {"/sys/module/nvidia_uvm": {"errno": "ENOENT"}}) == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (placed(SPEC, spec("570.172.08")), "driver 570.172.08, and 580.126.09 is loaded"),
        (placed("/etc/cdi/nvidia.yaml", spec("570.172.08")), "570.172.08"),
        (placed("/run/cdi/nvidia.json", in_json("570.172.08")), "570.172.08"),
        (placed(SPEC, spec(gpus=[*GPUS, "nvidia8"])), "names /dev/nvidia8, which does not exist"),
    ],
    ids=["driver updated", "by hand", "json", "a GPU went"],
)
def test_a_spec_of_another_day(found: dict[str, Any], why: str) -> None:
    (stale,) = findings(tree() | found)
    assert (stale.name, stale.severity) == ("cdi-spec-stale", Severity.ERROR)
    assert why in stale.detail


def test_a_gpu_that_came_is_in_no_spec() -> None:
    (stale,) = findings(tree() | placed(SPEC, spec(gpus=GPUS[:7])))
    assert (stale.severity, stale.title) == (
        Severity.WARNING,
        f"CDI spec {SPEC} does not fit this host: it does not name /dev/nvidia7, which is there",
    )


OLD = placed("/etc/cdi/nvidia.yaml", spec("570.172.08"))


@pytest.mark.parametrize(
    "found",
    [
        OLD | placed(SPEC, spec()),
        placed(SPEC, spec("570.172.08", kind="amd.com/gpu")),
        placed("/etc/cdi/notes.txt", spec("570.172.08")),
        placed(SPEC, spec("570.172.08")) | {"/sys/module/nvidia/version": {"errno": "EACCES"},
                                            "/proc/driver/nvidia/version": {"errno": "EACCES"}},
        placed(SPEC, spec(gpus=[], kind="management.nvidia.com/gpu")),
        placed(SPEC, "kind: [\nnot a spec: libcuda.so.570.172.08"),
        placed(SPEC, spec(gpus=[*GPUS, "nvidia8"]).replace(
            "- path: /dev/nvidia", "- hostPath: /run/nvidia/driver/dev/nvidia0\n      path: /dev/"
            "nvidia")),
    ],
    ids=["renewed at run time", "another vendor", "no spec", "driver unknown", "all of them",
         "not a spec", "nodes elsewhere"],
)  # fmt: skip
def test_what_is_no_stale_spec(found: dict[str, Any]) -> None:
    assert names(tree() | found) == []


@pytest.mark.parametrize(
    "unread",
    [
        {"/var/run/cdi": {"errno": "EACCES"}},
        placed(SPEC, spec()) | {SPEC: {"errno": "EACCES"}},
    ],
    ids=["folder", "file"],
)
def test_what_may_be_renewed_by_a_spec_that_cannot_be_read(unread: dict[str, Any]) -> None:
    facts = machine.read(RecordedHost(tree() | OLD | unread, ()), Subject("Host", "test"))
    answer = diagnosis.diagnose(registry.load(), [facts])
    assert not [finding for finding in answer.findings if finding.name in NAMES]
    (unknown,) = [one for one in answer.unknown if one.what == "the CDI specs in force"]
    assert "/var/run/cdi" in unknown.why
    assert "denied" in unknown.why
    # With nothing in /etc/cdi there is nothing that could be wrong.
    facts = machine.read(RecordedHost(tree() | unread, ()), Subject("Host", "test"))
    answer = diagnosis.diagnose(registry.load(), [facts])
    assert "the CDI specs in force" not in [one.what for one in answer.unknown]


def unknown(found: dict[str, Any]) -> list[str]:
    facts = machine.read(RecordedHost(found, ()), Subject("Host", "test"))
    answer = diagnosis.diagnose(registry.load(), [facts])
    return [f"{one.what}: {one.why}" for one in answer.unknown if "CDI" in one.what]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"/etc/cdi": {"errno": "EACCES"}}, "/etc/cdi denied (EACCES)"),
        ({"/etc/cdi": {"errno": "ETIMEDOUT"}}, "/etc/cdi did not answer in time"),
        (placed("/etc/cdi/nvidia.yaml", "") | {"/etc/cdi/nvidia.yaml": {"errno": "EACCES"}},
         "/etc/cdi/nvidia.yaml denied (EACCES)"),
        ({"/var/run/cdi": {"errno": "EACCES"}}, "/var/run/cdi denied (EACCES)"),
    ],
    ids=["folder", "hangs", "file", "at run time"],
)  # fmt: skip
def test_specs_that_may_not_be_read_are_unknown(found: dict[str, Any], says: str) -> None:
    assert unknown(tree() | found) == [f"whether the CDI specs fit this host: {says}"]
    # Once, whatever else is not known of them.
    assert len(unknown(tree() | OLD | {"/var/run/cdi": {"errno": "EACCES"}})) == 1


@pytest.mark.parametrize(
    "found",
    [
        tree() | {"/etc/cdi": {"dir": []}},
        {path: content for path, content in tree().items() if path != "/etc/cdi"},
        tree(["null"]) | {"/etc/cdi": {"errno": "EACCES"}, "/sys/module/nvidia/version":
                          {"errno": "ENOENT"}, "/proc/driver/nvidia/version": {"errno": "ENOENT"}},
    ],
    ids=["empty", "not recorded", "no driver"],
)  # fmt: skip
def test_no_specs_are_asked_for_where_none_are_missed(found: dict[str, Any]) -> None:
    assert unknown(found) == []


@given(st.text(max_size=300), st.sampled_from(["", "kind: nvidia.com/gpu\n", spec()]))
def test_any_text_is_taken(text: str, before: str) -> None:
    driver_files.read(RecordedHost(placed(SPEC, before + text), ()))
