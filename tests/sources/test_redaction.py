"""Redaction: what is private goes, equal things stay equal, and the diagnosis stays the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor import report as contract
from gpudoctor.readings import host as hosts
from gpudoctor.report import Evidence, Fixes
from gpudoctor.sources import redaction
from gpudoctor.sources.bundle import Bundle, HostRecording
from gpudoctor.sources.redaction import GONE, Redactor
from tests.render.reports import finding, two_causes

CASES = Path(__file__).parent.parent / "cases" / "node"
CHECKS = registry.load()


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("curl -H 'Authorization: Bearer abcdef0123456789'", "abcdef0123456789"),
        ("token=hunter2hunter2", "hunter2hunter2"),
        ("export HF_TOKEN='s3cret'", "s3cret"),
        ('{"api_key": "k-123"}', "k-123"),
        ("https://alice:pw123@git.example.org/x", "pw123"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTYifQ.c2ln", "eyJzdWIi"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIA"),
        ("mail alice.b@corp.example.org", "alice"),
        ("/home/alice/train.py", "alice"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", "MIIE"),
        ("eth0 172.16.31.7<0>", "172.16.31.7"),
        ("GID 0000:0000:0000:0000:0000:ffff:ac10:1f07", "ac10:1f07"),
        ("fe80:0000:0000:0000:a4ed:ccff:fe8b:1994", "fe8b:1994"),
        ("2001:4860::17", "4860"),
        ("link/ether b8:59:9f:03:d3:7b brd", "b8:59:9f"),
        ("gpu-a17.corp.example: NCCL", "gpu-a17"),
        ("gpu-a17:1234:1240 [0] NCCL INFO", "gpu-a17"),
    ],
)
def test_what_is_private_goes(text: str, secret: str) -> None:
    assert secret not in Redactor(["gpu-a17.corp.example"]).text(text)


@pytest.mark.parametrize(
    "text",
    [
        "0000:1b:00.0 NVIDIA",
        "NVRM version: 570.172.08",
        "127.0.0.1:8080",
        "0000:0000:0000:0000:0000:0000:0000:0000",
        "2026-11-29T12:34:56Z",
        "std::vector<c10d::Store>",
        "nvidia.com/gpu: 8",
        "secretName of a volume",
        "libnccl.so.2.21.5",
        "32.0 GT/s PCIe",
    ],
)
def test_what_is_needed_stays(text: str) -> None:
    assert Redactor(["gpu-a17"]).text(text) == text


def test_equal_stays_equal_and_formats_stay() -> None:
    redactor = Redactor(["n1"])
    first = redactor.text("172.16.31.7 172.16.31.8 172.16.9.1 172.16.31.7").split()
    assert first == ["10.1.1.1", "10.1.1.2", "10.1.2.1", "10.1.1.1"]
    gid = redactor.text("0000:0000:0000:0000:0000:ffff:ac10:1f07")
    assert gid == "0000:0000:0000:0000:0000:ffff:0a01:0101", "the GID of the same address"
    assert redactor.text("fe80:0000:0000:0000:a4ed:ccff:fe8b:1994").startswith("fe80:0000:")


def test_objects() -> None:
    node = {"kind": "Node", "metadata": {"name": "gpu-a17", "managedFields": [1]}}
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "trainer-0",
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {
            "nodeName": "gpu-a17",
            "containers": [
                {
                    "image": "registry.corp.example/team/train:1",
                    "env": [
                        {"name": "NCCL_IB_HCA", "value": "mlx5_0"},
                        {"name": "WORLD_SIZE", "value": "8"},
                        {"name": "NVIDIA_API_KEY", "value": "hunter2"},
                        {"name": "DB", "value": "postgres"},
                    ],
                }
            ],
        },
    }
    secret = {"kind": "Secret", "data": {"x": "eHg="}}
    raw = tuple(msgspec.Raw(json.dumps(item).encode()) for item in (node, pod, secret))
    bundle = Bundle(
        objects=raw,
        logs={"ns/trainer-0/main": "gpu-a17:1:1 [0] NCCL INFO\n"},
        hosts={"gpu-a17": HostRecording(tree={"/proc/sys/kernel/hostname": "gpu-a17\n"})},
    )
    redacted = redaction.redact(bundle)
    assert len(redacted.objects) == 2
    (name,) = redacted.hosts
    kept: dict[str, Any] = msgspec.json.decode(redacted.objects[1])
    assert kept["spec"]["nodeName"] == name == "node-1"
    assert kept["metadata"]["name"] == "trainer-0"
    container = kept["spec"]["containers"][0]
    assert [entry["value"] for entry in container["env"]] == ["mlx5_0", "8", GONE, GONE]
    assert container["image"] == "registry-1.example/team/train:1"
    assert redacted.logs["ns/trainer-0/main"] == "node-1:1:1 [0] NCCL INFO\n"
    assert "gpu-a17" not in msgspec.json.encode(redacted).decode()
    assert "managedFields" not in msgspec.json.encode(redacted).decode()


@pytest.mark.parametrize("path", sorted(CASES.glob("host-*.json")), ids=lambda path: path.stem)
def test_the_diagnosis_stays_the_same(path: Path) -> None:
    case = json.loads(path.read_text())
    recording = HostRecording(tree=case["tree"], tree_later=case.get("tree_later", {}))
    bundle = Bundle(hosts={"local": recording})
    before = readings.judge(hosts.read_recorded(bundle), CHECKS)
    after = readings.judge(hosts.read_recorded(redaction.redact(bundle)), CHECKS)
    assert [finding.id for finding in before.findings] == [f.id for f in after.findings]
    assert before.facts == after.facts


@settings(deadline=None, max_examples=100)
@given(
    st.recursive(
        st.text() | st.none() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_never_raises_and_is_stable(value: Any) -> None:
    first = Redactor(["abc"]).value(value)
    assert Redactor(["abc"]).value(value) == first


def test_what_is_published_quotes_no_credentials_and_keeps_names() -> None:
    """What an agent writes into the cluster; links between findings stay."""
    found = finding(
        "nccl-socket",
        "registry login password=hunter2 failed on gpu-a17",
        detail="curl https://me:hunter2@registry.example/v2/ from 10.12.0.7",
        evidence=(
            Evidence("Event/ml/trainer-0", "message", "Authorization: Bearer hunter2hunter2"),
        ),
        fixes=Fixes(user="unset TOKEN=hunter2"),
    )
    report = msgspec.structs.replace(two_causes(), findings=(found,), root_ids=(found.id,))
    whole = msgspec.structs.replace(two_causes(), children=(report,))
    published = redaction.publishable(whole)
    assert b"hunter2" not in contract.encode(published)
    [child] = published.children
    assert child.root_ids == report.root_ids
    assert "gpu-a17" in child.findings[0].title
    assert "10.12.0.7" in child.findings[0].detail
    clean = two_causes()
    assert redaction.publishable(clean) == clean
