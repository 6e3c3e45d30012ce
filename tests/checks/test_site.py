"""A node against its site's profile, and waivers that expire."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.errors import InputError
from gpudoctor.facts.node import site
from gpudoctor.readings import host
from gpudoctor.readings import site as reading
from gpudoctor.report import Report, Severity
from gpudoctor.sources.bundle import Bundle, HostRecording

CHECKS = registry.load()
TODAY = dt.date(2026, 11, 29)
PCI = "/sys/bus/pci/devices"
IB = "/sys/class/infiniband"
TREE: dict[str, Any] = {
    PCI: {"dir": ["0000:1b:00.0", "0000:1c:00.0"]},
    "/proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t NVIDIA H100 80GB HBM3\n",
    "/sys/module/nvidia/version": "570.172.08\n",
    "cmd:nvidia-smi topo -m": "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    "GPU0\t X \tNV16\t0-3\t0\nGPU1\tNV16\t X \t0-3\t0\n",
}
for _address in ("0000:1b:00.0", "0000:1c:00.0"):
    TREE |= {f"{PCI}/{_address}/vendor": "0x10de", f"{PCI}/{_address}/class": "0x030200"}
for _name, _rate in (("mlx5_0", "400"), ("mlx5_1", "200")):
    _port = f"{IB}/{_name}/ports/1"
    TREE |= {f"{_port}/state": "4: ACTIVE", f"{_port}/rate": f"{_rate} Gb/sec (4X)"}
    TREE |= {f"{_port}/link_layer": "InfiniBand", f"{IB}/{_name}/hca_type": _rate}


def judge(profile: str, tree: dict[str, Any] = TREE) -> Report:
    recorded = host.read_recorded(Bundle(hosts={"local": HostRecording(tree=tree)}))
    expected = site.parse(profile, "site.toml")
    return readings.judge(reading.apply(recorded, expected, TODAY), CHECKS)


def loud(profile: str) -> set[str]:
    answer = judge(profile)
    return {finding.name for finding in answer.findings if finding.severity is not Severity.INFO}


def test_as_expected() -> None:
    profile = """
        [gpus]
        count = 2
        model = "h100"
        nvlinks = 16
        [nics]
        count = 2
        link_layer = "InfiniBand"
        [driver]
        version = "570."
    """
    assert loud(profile) == set()
    assert loud("") == set()


@pytest.mark.parametrize(
    ("profile", "name"),
    [
        ("[gpus]\ncount = 8", "gpu-count-wrong"),
        ("[gpus]\nnvlinks = 18", "nvlink-degraded"),
        ("[gpus]\nmodel = 'B200'", "site-profile-mismatch"),
        ("[driver]\nversion = '580.'", "site-profile-mismatch"),
        ("[nics]\ncount = 2\nrate_gbps = 400", "nic-count-wrong"),
        ("[nics]\ncount = 1\nlink_layer = 'Ethernet'", "nic-count-wrong"),
    ],
)
def test_not_as_expected(profile: str, name: str) -> None:
    assert loud(profile) == {name}


def test_what_cannot_be_compared_is_unknown() -> None:
    profile = "[gpus]\ncount=8\nnvlinks=18\nmodel='H100'\n[nics]\ncount=8\n[driver]\nversion='5'"
    answer = judge(profile, {})
    assert answer.verdict == "unknown"
    assert {"number of GPUs", "NVLinks", "RDMA ports", "driver version", "GPU model"} <= {
        unknown.what for unknown in answer.unknown
    }


def test_a_waiver_holds_until_its_day() -> None:
    waiver = "[gpus]\ncount=8\n[[waiver]]\nfinding='{}'\nreason='spare'\nuntil={}\n"
    assert loud(waiver.format("gpu-count-wrong", "2026-11-29")) == set()
    assert loud(waiver.format("TOP025", "2026-12-01")) == set()
    assert loud(waiver.format("gpu-count-wrong", "2026-11-28")) == {"gpu-count-wrong"}
    assert loud(waiver.format("nic-port-down", "2026-12-01")) == {"gpu-count-wrong"}
    for_one = waiver.format("gpu-count-wrong", "2026-12-01") + "device='mlx5_5'\n"
    assert loud(for_one) == {"gpu-count-wrong"}
    expired = judge(waiver.format("gpu-count-wrong", "2026-11-28")).facts["site"]
    assert [entry["reason"] for entry in expired["expired_waivers"]] == ["spare"]


@pytest.mark.parametrize(
    "text", ["gpus = 3", "[gpus]\ncout = 8", "[[waiver]]\nfinding='x'", "[nics]\ncount=-1", "=\x00"]
)
def test_a_mistake_is_named(text: str) -> None:
    with pytest.raises(InputError, match=r"site\.toml: not a usable site profile"):
        site.parse(text, "site.toml")


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=60))
def test_never_raises_anything_else(text: str) -> None:
    with contextlib.suppress(InputError):
        site.parse(text, "site.toml")
