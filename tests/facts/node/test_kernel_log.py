"""The kernel log: published cases, each prefix, each form of a message, any text in any chunks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node.kernel_log import (
    KernelLog,
    RecoveryAction,
    gpu_actions,
    node_action,
    published,
)
from gpudoctor.facts.node.kernel_log_lines import split_line
from gpudoctor.facts.node.kernel_log_reader import KernelLogReader, read_kernel_log
from gpudoctor.facts.node.xid import XidSeverity, xid
from gpudoctor.report import Subject

CASES = sorted((Path(__file__).parent.parent.parent / "cases/node").glob("kmsg-*.log"))
HOST = Subject("Host", "local")
XID = "NVRM: Xid (PCI:0000:3b:00): 31, pid=412, name=python3, Ch 00000008, MMU Fault"


def read(text: str | bytes) -> KernelLog:
    raw = text if isinstance(text, bytes) else text.encode()
    return read_kernel_log([raw], HOST)


def events(text: str | bytes) -> list[tuple[int, str, int]]:
    return [(event.code, event.pci, event.count) for event in read(text).events]


@pytest.mark.parametrize(
    "entry",
    ['{"sequence": 1}', '{"sequence": 1, "msg": 7}', '{"sequence": "1", "msg": "NVRM: Xid"}'],
)
def test_entries_of_a_collector_that_are_not_whole_tell_nothing(entry: str) -> None:
    assert read(f"{entry} NVRM: \n{entry}\n").events == ()


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_published_cases(path: Path) -> None:
    expected: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
    found = published(read(path.read_bytes()))
    assert len(found["events"]) == len(expected["events"])
    for want, have in zip(expected["events"], found["events"], strict=True):
        assert {key: have.get(key) for key in want} == want
    assert expected.get("node_action") in (None, found["node_action"])
    assert expected.get("gpu_actions") in (None, found["gpu_actions"])


@pytest.mark.parametrize(
    ("prefix", "time", "host"),
    [
        ("", None, None),
        ("[ 8121.402224] ", "8121.402224", None),
        ("[Wed Mar 11 06:20:17 2026] ", "Wed Mar 11 06:20:17 2026", None),
        ("[Mar11 06:20] ", "Mar11 06:20", None),
        ("10.0.0.9: kern: warning: [2026-04-22T21:27:51.29Z]: ", "2026-04-22T21:27:51.29Z",
         "10.0.0.9"),
        ("[  +0.000012] ", "+0.000012", None),
        ("[51233.900121 <    0.000012>] ", "51233.900121 <    0.000012>", None),
        ("<1>[51233.900121] ", "51233.900121", None),
        ("kern  :alert : [51233.900121] ", "51233.900121", None),
        ("kern  :err   : 2026-03-04T02:11:09,118231+00:00 ",
         "2026-03-04T02:11:09,118231+00:00", None),
        ("2026-03-04T02:11:09,118231+00:00 ", "2026-03-04T02:11:09,118231+00:00", None),
        ("Mar 11 06:20:17 gpu-node kernel: ", "Mar 11 06:20:17", "gpu-node"),
        ("Mar  1 06:20:17 gpu-node kernel: [51233.900121] ", "Mar  1 06:20:17", "gpu-node"),
        ("Mar 11 06:20:17.118231 gpu-node kernel: ", "Mar 11 06:20:17.118231", "gpu-node"),
        ("april 24 16:22:15 gpu-node kernel: ", "april 24 16:22:15", "gpu-node"),
        ("févr. 01 10:00:00 gpu-node kernel: ", "févr. 01 10:00:00", "gpu-node"),
        ("11月 15 14:15:47 gpu-node kernel: ", "11月 15 14:15:47", "gpu-node"),
        ("2026-03-11T06:20:17+0000 gpu-node kernel: ", "2026-03-11T06:20:17+0000", "gpu-node"),
        ("Wed 2026-03-11 06:20:17 UTC gpu-node kernel: ", "2026-03-11 06:20:17 UTC", "gpu-node"),
        ("[51233.900121] gpu-node kernel: ", "51233.900121", "gpu-node"),
        ("1741674017.123456 gpu-node kernel: ", "1741674017.123456", "gpu-node"),
        ("<4>1 2026-03-11T06:20:17.118Z gpu-node kernel - - - [512.900121] ",
         "2026-03-11T06:20:17.118Z", "gpu-node"),
        ("1,1234,51233900121,-;", "51233.900121", None),
        ("4,1234,51233900121,-,caller=T99;", "51233.900121", None),
        ("\x1b[32m[ 8121.402224] \x1b[0m\x1b[33m", "8121.402224", None),
        ("gpu-07: [ 8121.402224] ", "8121.402224", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", ["\n", "\r\n", ""])
def test_prefixes(prefix: str, time: str | None, host: str | None, ending: str) -> None:
    (event,) = read(prefix + XID + ending).events
    assert (event.code, event.pci, event.pid, event.process) == (31, "0000:3b:00", 412, "python3")
    assert (event.first_time, event.host) == (time, host)


def test_journal_in_json() -> None:
    entry = {
        "MESSAGE": XID,
        "_TRANSPORT": "kernel",
        "_HOSTNAME": "gpu-node",
        "__REALTIME_TIMESTAMP": "1741674017123456",
    }
    (event,) = read(json.dumps(entry)).events
    assert (event.host, event.first_time) == ("gpu-node", "1741674017.123456")
    as_bytes = entry | {"MESSAGE": list(XID.encode())}
    assert events(json.dumps(as_bytes, separators=(",", ":"))) == [(31, "0000:3b:00", 1)]
    pretty = f'{{\n\t"MESSAGE" : "{XID}",\n\t"_TRANSPORT" : "kernel"\n}}'
    assert events(pretty) == [(31, "0000:3b:00", 1)]
    dmesg_json = f'{{\n "dmesg": [\n  {{\n "pri": 12,\n "msg": "{XID}"\n }}\n ]\n}}'
    assert events(dmesg_json) == [(31, "0000:3b:00", 1)]


@pytest.mark.parametrize(
    "line",
    [
        f"Mar 11 06:20:17 node python3[412]: {XID}",
        f"2026-03-11 06:20:17 INFO worker saw '{XID}'",
        f"worker 12 06:20:17 {XID}",
        f"april 24 16:22:15 node python3[412]: {XID}",
        f"I0311 06:20:17 1 health.go:42] XidCriticalError: {XID}",
        json.dumps({"MESSAGE": XID, "_TRANSPORT": "stdout", "SYSLOG_IDENTIFIER": "python3"}),
        "Mar 11 06:20:17 node kernel: audit: comm=\"x\" NVRM: Xid (PCI:0000:3b:00): 79, gone",
        "XidCriticalError: Xid=79 on Device=GPU-1; marking device as unhealthy.",
        "NVRM: Xid error count is 5",
    ],
)  # fmt: skip
def test_a_program_that_quotes_an_xid_is_not_the_kernel(line: str) -> None:
    assert events(line) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 31, pid=9, name=a, x",
         {"gpu_instance": 5, "compute_instance": 1, "pid": 9}),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 31, pid=9, name=a, x",
         {"gpu_instance": 5, "compute_instance": None}),
        ("NVRM: Xid (0000:03:00): 13, 0003 00000000 0000902d", {"code": 13, "pci": "0000:03:00"}),
        ("NVRM: Xid (PCI:00000000:3B:00): 31, x", {"pci": "0000:3b:00"}),
        ("NVRM: Xid (PCI:0009:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
         {"pid": None, "process": None, "code": 79}),
        ("NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=a b, Ch 1 caused by previous Xid 109",
         {"follow_up_of": 109, "process": "a b"}),
        ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Link Fatal   XC0 i0 Link -1 "
         "(0x004525c6 0x00000000 0x0 0x0)", {"fatal": True, "link": -1, "subcode": 4}),
        ("NVRM: Xid (PCI:0000:3b:00): 74, NVLink: fatal error detected on link 5(0x10000, 0x0)",
         {"fatal": True, "link": 5}),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset "
         "Required) to 0x6 (Bus Reset)", {"recovery_action": RecoveryAction.BUS_RESET}),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to "
         "0x99 (Drain P2P)", {"recovery_action": RecoveryAction.DRAIN_P2P}),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=Worker, Rank 3, Ch 00000008, intr 0",
         {"pid": 7, "process": "Worker, Rank 3"}),
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=a, b, Graphics SM Warp Exception on (GPC 0",
         {"process": "a, b"}),
        ("NVRM: Xid (PCI:0000:3b:00): 119, pid=7, name=nv, x, Timeout after 6s of waiting for RPC",
         {"process": "nv, x"}),
        ("NVRM: Xid (PCI:0000:3b:00): 109, pid=7, name=a, b, Ch 0000000b, errorString CTX SWITCH",
         {"process": "a, b"}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name='a, b', Ch 00000008", {"process": "a, b"}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=a, Ch 0000000a, b", {"process": "a"}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=python3", {"process": "python3"}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, Ch 00000008", {"pid": 7, "process": None}),
        ("NVRM: Xid (PCI:0000:3b:00): 43, pid=7, name=a, words unknown, b", {"process": "a"}),
        ("NVRM: Xid (PCI:0000:3b:00): 999, something new", {"severity": XidSeverity.UNKNOWN}),
    ],
)  # fmt: skip
def test_forms_of_an_xid(message: str, expected: dict[str, object]) -> None:
    (event,) = read(f"[ 1.000000] {message}\n").events
    assert {key: getattr(event, key) for key in expected} == expected


def test_a_wrapped_line_is_read_whole() -> None:
    for cut in range(20, len(XID)):
        wrapped = f"[ 8121.402224] {XID[:cut]}\n{XID[cut:]}\n[ 8122.000000] other\n"
        (event,) = read(wrapped).events
        assert (event.code, event.pci, event.count) == (31, "0000:3b:00", 1), wrapped
    by_words = (
        "[ 1.000000] NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=a, Ch 1 caused by previous\n"
        "Xid 94\n"
    )
    assert read(by_words).events[0].follow_up_of == 94


def test_falling_off_the_bus_is_one_event_however_it_is_said() -> None:
    plain = "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.\n"
    coded = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off\n"
    other = "NVRM: Xid (PCI:0000:18:00): 154, GPU recovery action changed from 0x0 to 0x2 (x)\n"
    at_boot = (
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)\n"
        "NVRM: installed in this system has fallen off the bus and is not\n"
        "NVRM: responding to commands.\n"
    )
    for text in (plain, coded, coded + plain, plain + coded, plain * 2, at_boot):
        assert events(text) == [(79, "0000:18:00", 1)], text
    assert events(plain + other + coded)[0] == (79, "0000:18:00", 1)
    assert read(plain + other).events[1].follow_up_of == 79


def test_follow_ups_stay_with_their_root_and_their_gpu() -> None:
    def x(pci: str, code: int, text: str = "pid=1, name=a, x") -> str:
        return f"NVRM: Xid (PCI:0000:{pci}:00): {code}, {text}\n"

    log = read(
        x("3b", 48) + x("3b", 172) + x("5e", 45) + x("3b", 43) + x("3b", 63) + x("3b", 45)
        + x("5e", 171)
    )  # fmt: skip
    assert [(event.pci[5:7], event.code, event.follow_up_of) for event in log.events] == [
        ("3b", 48, None), ("3b", 172, 48), ("5e", 45, None), ("3b", 43, 48), ("3b", 63, None),
        ("3b", 45, 63), ("5e", 171, None),
    ]  # fmt: skip


def recovery(pci: str, to: str) -> str:
    return f"NVRM: Xid (PCI:{pci}): 154, GPU recovery action changed from 0x0 (None) to {to}\n"


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 13, x\n", "none"),
        ("NVRM: Xid (PCI:0000:3b:00): 63, x\nNVRM: Xid (PCI:0000:3b:00): 13, x\n",
         "reset-when-idle"),
        ("NVRM: Xid (PCI:0000:3b:00): 48, x\n", "drain-and-reset-then-rma-check"),
        ("NVRM: Xid (PCI:0000:3b:00): 119, x\n" + recovery("0000:3b:00", "0x2 (x)"), "reboot"),
        ("NVRM: Xid (PCI:0000:3b:00): 64, x\nNVRM: Xid (PCI:0000:3b:00): 79, x\n",
         "drain-and-reset-then-rma-check"),
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_A Fatal XC0 i0 Link 01 (0x1 0x2)\n",
         "drain-and-reset"),
        # the driver's last word stands, also that all is well again
        ("NVRM: Xid (PCI:0000:3b:00): 145, RLW_A Fatal XC0 i0 Link 01 (0x1 0x2)\n"
         + recovery("0000:3b:00", "0x1 (x)") + recovery("0000:3b:00", "0x0 (None)"), "none"),
        ("NVRM: Xid (PCI:0000:3b:00): 95, x\n" + recovery("0000:3b:00", "0x0 (None)")
         + "NVRM: Xid (PCI:0000:3b:00): 95, x\n", "drain-and-reset"),
        (recovery("0000:3b:00", "0x5 (Recover IMEX Domain)"), "drain-and-reset-fabric"),
        ("NVRM: Xid (PCI:0000:3b:00): 999, x\n", "none"),
    ],
)  # fmt: skip
def test_what_a_gpu_needs(text: str, action: str) -> None:
    log = read(text)
    assert gpu_actions(log)["0000:3b:00"].word == action
    assert node_action(log).word == action


@pytest.mark.parametrize(
    ("line", "severity", "action"),
    [
        ("12028, Non-fatal, Link 32 egress", XidSeverity.INFO, "none"),
        ("11012, Link 32 no word, listed as non-fatal", XidSeverity.INFO, "none"),
        ("20034, Link 30 no word, not listed", XidSeverity.LINK, "drain-and-reset-fabric"),
        ("22003, Fatal, Link 30 needs a reboot", XidSeverity.LINK, "reboot"),
    ],
)
def test_switch_errors(line: str, severity: XidSeverity, action: str) -> None:
    text = f"nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): {line}\n"
    details = text.replace(line, f"{line[:5]}, Severity 1 Engine instance 30") + text.replace(
        line, f"{line[:5]}, Data {{0x0, 0x1}}"
    )
    (event,) = read(text + details).events
    assert (event.severity, event.count, event.pci) == (severity, 1, "0000:a9:00.0")
    assert node_action(read(text)).word == action


@pytest.mark.parametrize(
    ("name", "text", "pci"),
    [
        ("driver-library-mismatch",
         "NVRM: API mismatch: the client has the version 470.82.01, but\n"
         "NVRM: this kernel module has the version 470.57.02.  Please\n", None),
        ("driver-library-mismatch",
         "NVRM: API mismatch: the client 'nvidia-smi' (pid 77)\n"
         "NVRM: has the version 470.82.01, but this kernel module has\n"
         "NVRM: the version 470.57.02.  Please make sure that this\n", None),
        ("adapter-init-failed",
         "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1463)\n", "0000:3b:00"),
        ("adapter-init-failed", "NVRM: rm_init_adapter failed, device minor number 0\n", None),
        ("needs-proprietary-kernel-module",
         "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1db6)\n"
         "NVRM: installed in this system is not supported by open\n"
         "NVRM: nvidia.ko because it does not include the required GPU\n", "0000:3b:00"),
        ("needs-open-kernel-module",
         "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2901)\n"
         "NVRM: installed in this system requires use of the NVIDIA open kernel modules.\n",
         "0000:3b:00"),
        ("gpu-dropped-by-driver",
         "NVRM: The NVIDIA Tesla K80 GPU installed in this system is\n"
         "NVRM:  supported through the NVIDIA 470.xx Legacy drivers. Please\n", None),
        ("gpu-newer-than-driver",
         "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2901)\n"
         "NVRM: installed in this system is not supported by the\n"
         "NVRM: NVIDIA 550.54.15 driver release.\n", "0000:3b:00"),
        ("nouveau-bound", "nouveau 0000:3b:00.0: NVIDIA GV100 (140000a1)\n", "0000:3b:00"),
        ("module-signature-rejected", "Loading of unsigned module is rejected\n", None),
        ("module-signature-rejected",
         "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7\n",
         None),
    ],
)  # fmt: skip
def test_other_conditions(name: str, text: str, pci: str | None) -> None:
    stamped = "".join(f"[ 1.000000] {line}\n" for line in text.splitlines())
    for form in (text, stamped):
        (condition,) = read(form).conditions
        assert (condition.name, condition.pci) == (name, pci)
    if name == "driver-library-mismatch":
        assert condition.values == {"library": "470.82.01", "module": "470.57.02"}


@pytest.mark.parametrize(
    "line",
    [
        "nvidia: module verification failed: signature and/or required key missing - tainting",
        "Command line: BOOT_IMAGE=/vmlinuz modprobe.blacklist=nouveau rd.driver.blacklist=nouveau",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.172.08",
        "nvidia-nvswitch0: open (major=510)",
        "NVRM: GPU at PCI:0000:3b:00: GPU-5f0c1b62-1111-2222-3333-0a0b0c0d0e0f",
    ],
)
def test_ordinary_lines_mean_nothing(line: str) -> None:
    log = read(f"[ 1.000000] {line}\n")
    assert (log.events, log.conditions, log.pcie_errors) == ((), (), ())


def test_pcie_errors_are_counted_by_device_and_severity() -> None:
    log = read(
        "pcieport 0000:17:01.0: AER: Uncorrected (Fatal) error message received from 0000:18:00.0\n"
        "pcieport 0000:17:01.0: AER: Multiple Corrected error message received from 0000:17:01.0\n"
        "pcieport 0000:17:01.0: AER: Corrected error message received from 0000:17:01.0\n"
        "pcieport 0000:17:01.0: AER: Uncorrectable (Non-Fatal) error message received from x\n"
        "pcieport 0000:17:01.0: AER: enabled with IRQ 40\n"
    )
    assert [(error.severity, error.count) for error in log.pcie_errors] == [
        ("fatal", 1), ("corrected", 2), ("non-fatal", 1),
    ]  # fmt: skip


def test_hosts_of_a_common_log_are_kept_apart() -> None:
    text = "".join(f"Mar 11 06:20:17 {host} kernel: {XID}\n" for host in ("a", "b", "a"))
    assert [(event.host, event.count) for event in read(text).events] == [("a", 2), ("b", 1)]
    assert set(gpu_actions(read(text))) == {"a/0000:3b:00", "b/0000:3b:00"}


def test_lines_are_numbered() -> None:
    text = "noise\n" * 41 + XID + "\n"
    assert read(text).events[0].line == 42


def test_memory_is_bounded() -> None:
    lines = "".join(
        f"NVRM: Xid (PCI:{number:04x}:3b:00): 31, x\n" for number in range(5000)
    ).encode()
    log = read(lines)
    assert len(log.events) + log.overflow == 5000
    assert log.overflow > 0
    reader = KernelLogReader(HOST)
    for _ in range(50):
        reader.feed(b"x" * 100_000)
    assert len(reader._rest) < 50_000
    reader.feed(f"\n{XID}\n".encode())
    assert [event.line for event in reader.finish().events] == [2]


def test_each_code_of_the_catalogue_has_a_finding() -> None:
    assert {xid(code).code for code in range(1, 177)} == set(range(1, 177))
    assert xid(12345).severity is XidSeverity.UNKNOWN


FRAGMENTS = st.sampled_from(
    [
        XID, "NVRM: Xid (PCI:0000:3b", ":00): 79, GPU", "[ 12.000001] ", "\n", "\r\n", "\x1b[0m",
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.", "NVRM: API mismatch: the client",
        "NVRM: has the version 570.195.03, but", "nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034",
        ", Fatal, Link 3", '{"MESSAGE": "', "1,2,3,-;", "NVRM: Xid (PCI:0000:3b:00): 154, to 0x2 (",
        "pcieport 0000:17:01.0: AER: Corrected error", " kernel: ", "nouveau 0000:3b:00.0: x",
        "[    0.000000] Linux version 6.8", "-- Reboot --", "-- Boot 0 --", "[ 900.000001] ",
        "Mar 11 06:20:17 n kernel: ", "oom-kill:constraint=CONSTRAINT_NONE,task_memcg=/,",
        "task=a,pid=1,uid=0",
        "DMAR: [DMA Write] Request device [3b:00.0] fault addr 0 [fault reason 05] x",
        "Out of memory: Killed process 7 (a) ",
        "pci 0000:3b:00.0: [10de:2330] type 00 class 0x0302",
    ]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, FRAGMENTS, st.text(max_size=20)), max_size=40).map("".join)


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.lists(st.integers(0, 400), max_size=6))
def test_the_cuts_do_not_matter(text: str, cuts: list[int]) -> None:
    raw = text.encode("utf-8", "replace")
    places = [0, *sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[start:end] for start, end in pairwise(places)]
    assert read_kernel_log(pieces, HOST) == read_kernel_log([raw], HOST)
    assert read_kernel_log([raw[at : at + 1] for at in range(len(raw))], HOST) == read(raw)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400))
def test_any_bytes_are_taken(raw: bytes) -> None:
    split_line(raw)
    published(read(b"NVRM: Xid (PCI:0000:3b:00): 31" + raw))
    published(read(raw + XID.encode()))
