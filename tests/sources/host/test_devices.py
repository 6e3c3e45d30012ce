"""pyudev on a simulated machine and on this one; the kernel's real uevents."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpudoctor.facts.node import machine, system
from gpudoctor.facts.node.model import NodeFacts
from gpudoctor.report import Subject
from gpudoctor.sources.host.devices import Change, Hotplug
from gpudoctor.sources.host.recorded import RecordedHost
from gpudoctor.sources.system import read_system
from tests import parts, umockdev
from tests.machines import whole_machine

HOST = Subject("Host", "test")
PLENTY_S = 30.0
SCRIPT = """
import sys
from gpudoctor.sources import system_child
system_child.main(["devices"])
"""
PLUG = """
import ctypes, json, sys
import msgspec
from gpudoctor.sources.host.devices import Hotplug
library = ctypes.CDLL("libumockdev.so.0")
library.umockdev_testbed_new.restype = ctypes.c_void_p
library.umockdev_testbed_add_from_string.argtypes = [
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
]
library.umockdev_testbed_uevent.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
library.umockdev_testbed_remove_device.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
bed = library.umockdev_testbed_new()
gpu = b"P: /devices/pci0000:10/0000:10:01.0\\nE: SUBSYSTEM=pci\\nA: class=0x030200\\\\n\\n"
block = b"P: /devices/virtual/block/loop0\\nE: SUBSYSTEM=block\\n\\n"
with Hotplug() as hotplug:
    seen = []
    for device, path in ((gpu, b"/sys/devices/pci0000:10/0000:10:01.0"),
                         (block, b"/sys/devices/virtual/block/loop0")):
        assert library.umockdev_testbed_add_from_string(bed, device, None)
        library.umockdev_testbed_uevent(bed, path, b"change")
        seen.append(hotplug.wait(2.0))
    library.umockdev_testbed_uevent(bed, b"/sys/devices/pci0000:10/0000:10:01.0", b"remove")
    seen.append(hotplug.wait(2.0))
print(json.dumps(msgspec.to_builtins(seen)))
"""


def run(*command: str) -> str:
    done = subprocess.run(
        [*command], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    return done.stdout


@pytest.fixture(scope="module")
def enumerated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the reading process prints on an HGX-like machine that umockdev shows to it."""
    description = tmp_path_factory.mktemp("machine") / "hgx.umockdev"
    description.write_text(umockdev.describe(whole_machine()))
    simulate = parts.program("umockdev-run", "umockdev")
    return run(simulate, "-d", str(description), "--", sys.executable, "-c", SCRIPT)


def plain(tree: dict[str, Any]) -> NodeFacts:
    host = RecordedHost(tree, roots=["/sys"])
    return machine.with_gpus(host, machine.read(host, HOST), None)


def test_udev_and_plain_reads_give_the_same_facts(enumerated: str) -> None:
    told = system.parse(enumerated)
    assert told.unknown == ()
    counts = Counter(device.subsystem for device in told.devices or ())
    assert counts == {"pci": 16, "infiniband": 8}
    facts = plain(whole_machine())
    host = RecordedHost(whole_machine(), roots=["/sys"])
    assert machine.with_system(host, facts, told) == facts


def test_what_udev_knows_beyond_the_listing_is_read_like_the_rest(enumerated: str) -> None:
    told = system.parse(enumerated)
    tree = whole_machine() | {"/sys/bus/pci/devices": {"errno": "EACCES"}}
    host = RecordedHost(tree)
    blind = machine.read(host, HOST)
    assert (blind.pci, blind.pci_whole) == ((), False)
    facts = machine.with_system(host, blind, told)
    assert facts.pci_whole
    assert facts.gpus == plain(whole_machine()).gpus


def test_rdma_devices_know_their_interfaces_and_cards_their_names() -> None:
    card = "0000:14:00.0"
    devices = [
        {"subsystem": "pci", "name": card, "pci": card,
         "properties": {"ID_MODEL_FROM_DATABASE": "MT2910 Family [ConnectX-7]"}},
        {"subsystem": "net", "name": "eth2", "pci": card},
        {"subsystem": "net", "name": "lo", "pci": None},
    ]  # fmt: skip
    told = system.parse(json.dumps(["devices", devices]))
    facts = machine.with_system(RecordedHost({}), plain(whole_machine()), told)
    (first, *others) = facts.hcas or ()
    assert (first.name, first.interfaces) == ("mlx5_0", ("eth2",))
    assert all(hca.interfaces == () for hca in others)
    named = next(device for device in facts.pci if device.address == card)
    assert named.model == "MT2910 Family [ConnectX-7]"


def test_this_machine_has_what_its_sysfs_lists() -> None:
    answer = read_system(PLENTY_S, "devices")
    assert not isinstance(answer, str)
    told = system.parse(answer.text)
    for subsystem, folder in (("pci", "/sys/bus/pci/devices"), ("net", "/sys/class/net")):
        listed = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        assert {one.name for one in told.devices or () if one.subsystem == subsystem} == listed


def test_a_card_that_comes_and_goes() -> None:
    wrapper = parts.program("umockdev-wrapper", "umockdev")
    changed, other, removed = json.loads(run(wrapper, sys.executable, "-c", PLUG))
    assert changed == [
        {"action": action, "subsystem": "pci", "name": "0000:10:01.0"}
        for action in ("add", "change")
    ], "one burst"
    assert other == [], "nobody asked for disks"
    assert [change["action"] for change in removed] == ["remove"]


def test_the_kernels_own_uevents() -> None:
    with Hotplug() as hotplug:
        try:
            Path("/sys/class/net/lo/uevent").write_text("change")
        except OSError as error:
            parts.missing(f"the right to ask for a uevent (root): {error}")
        assert Change("change", "net", "lo") in hotplug.wait(PLENTY_S)
        assert isinstance(hotplug.fileno(), int)


def test_a_device_that_never_rests_does_not_hold_the_reader_up() -> None:
    device = Path("/sys/class/net/lo/uevent")
    if not os.access(device, os.W_OK):
        parts.missing("the right to ask for a uevent (root)")
    stop = threading.Event()

    def restless() -> None:
        while not stop.is_set():
            device.write_text("change")

    with Hotplug(("net",)) as hotplug:
        thread = threading.Thread(target=restless)
        thread.start()
        try:
            assert hotplug.wait(PLENTY_S), "a burst that has an end"
        finally:
            stop.set()
            thread.join()


def test_other_subsystems_are_not_heard() -> None:
    with Hotplug(("infiniband",)) as hotplug:
        try:
            Path("/sys/class/net/lo/uevent").write_text("change")
        except OSError as error:
            parts.missing(f"the right to ask for a uevent (root): {error}")
        assert hotplug.wait(1.0) == ()
