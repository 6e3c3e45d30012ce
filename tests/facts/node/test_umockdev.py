"""One whole machine, four observers: our reader, the recording, lspci and pyudev agree.

umockdev shows a simulated /sys to lspci and libudev; the same files are read plainly by our
reader, as below a mounted root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpudoctor.facts.node import machine
from gpudoctor.report import Subject
from gpudoctor.sources.host.recorded import RecordedHost
from tests import parts, umockdev
from tests.machines import whole_machine

OBSERVE = """
import json, os, subprocess
import msgspec, pyudev
from gpudoctor.facts.node import machine
from gpudoctor.report import Subject
from gpudoctor.sources.host.live import LiveHost

context = pyudev.Context()
number = lambda device, name: int(device.attributes.get(name), 0)
with LiveHost(os.environ["UMOCKDEV_DIR"]) as live:
    facts = machine.with_gpus(live, machine.read(live, Subject("Host", "test")), None)
print(json.dumps({
    "pyudev": {
        device.sys_name: [number(device, "vendor"), number(device, "class")]
        for device in context.list_devices(subsystem="pci")
    },
    "pyudev_rdma": {
        device.sys_name: device.parent.sys_name
        for device in context.list_devices(subsystem="infiniband")
    },
    "lspci": subprocess.run(
        ["lspci", "-D", "-n", "-vmm"], capture_output=True, text=True, check=True
    ).stdout,
    "ours": msgspec.to_builtins([facts.pci, facts.hcas, facts.numa, facts.topology]),
}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    description = tmp_path_factory.mktemp("machine") / "hgx.umockdev"
    description.write_text(umockdev.describe(whole_machine()))
    run = [parts.program("umockdev-run", "umockdev"), "-d", str(description), "--"]
    parts.program("lspci", "pciutils")
    observed = subprocess.run(
        [*run, sys.executable, "-c", OBSERVE],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    decoded = json.loads(observed.stdout)
    assert isinstance(decoded, dict)
    return decoded


def test_our_reader_and_the_recording_agree(seen: dict[str, Any]) -> None:
    recording = RecordedHost(whole_machine(), roots=["/"])
    facts = machine.read(recording, Subject("Host", "test"))
    facts = machine.with_gpus(recording, facts, None)
    recorded = msgspec.to_builtins([facts.pci, facts.hcas, facts.numa, facts.topology])
    assert json.loads(msgspec.json.encode(recorded)) == seen["ours"]
    assert len(facts.gpus) == 8


def test_lspci_and_our_reader_agree(seen: dict[str, Any]) -> None:
    printed = {}
    for block in seen["lspci"].strip().split("\n\n"):
        fields = dict(line.split(":\t", 1) for line in block.splitlines())
        printed[fields["Slot"]] = (
            int(fields["Vendor"], 16),
            int(fields["Class"], 16),
            int(fields["NUMANode"]),
        )
    devices, *_ = seen["ours"]
    ours = {one["address"]: (one["vendor"], one["class_"] >> 8, one["numa"]) for one in devices}
    assert ours == printed


def test_pyudev_and_our_reader_agree(seen: dict[str, Any]) -> None:
    devices, hcas, *_ = seen["ours"]
    assert seen["pyudev"] == {one["address"]: [one["vendor"], one["class_"]] for one in devices}
    assert seen["pyudev_rdma"] == {one["name"]: one["pci"]["address"] for one in hcas}
