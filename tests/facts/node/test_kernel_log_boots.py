"""Kernel logs that span boots: what is of the last one, and what is history."""

from __future__ import annotations

import json

import pytest

from gpudoctor.facts.node.kernel_log import KernelLog, node_action
from gpudoctor.facts.node.kernel_log_reader import KernelLogReader
from gpudoctor.report import Subject

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus"
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=412, name=python3, Ch 00000008, MMU Fault"
FIRST = "Linux version 6.8.0-31-generic (buildd@lcy02) #31-Ubuntu SMP"
LOADED = "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.172.08"
BOOT_1, BOOT_2 = "0" * 31 + "1", "0" * 31 + "2"


def read(*lines: str, cut: int = 7) -> KernelLog:
    """Read in small pieces: no answer may lean on where they are cut."""
    raw = "".join(f"{line}\n" for line in lines).encode()
    answers = []
    for size in (cut, len(raw) + 1):
        reader = KernelLogReader(Subject("Host", "local"))
        for at in range(0, len(raw), size):
            reader.feed(raw[at : at + size])
        answers.append(reader.finish())
    assert answers[0] == answers[1]
    return answers[0]


def said(log: KernelLog) -> list[tuple[int, bool]]:
    return [(event.code, event.before_boot) for event in log.events]


def dmesg(seconds: float, message: str) -> str:
    return f"[{seconds:12.6f}] {message}"


def syslog(clock: str, message: str, host: str = "gpu-node") -> str:
    return f"{clock} {host} kernel: {message}"


def journal(boot: str, message: str) -> str:
    return json.dumps({"MESSAGE": message, "_TRANSPORT": "kernel", "_BOOT_ID": boot})


BEFORE = {
    "journalctl since systemd 248": (
        syslog("Mar 11 06:20:17", LOST), f"-- Boot {BOOT_2} --", syslog("Mar 11 06:40:00", "x"),
    ),
    "journalctl of older systemd": (
        "-- Logs begin at Mon 2026-03-02 10:00:00 UTC, end at Wed 2026-03-11 10:00:00 UTC. --",
        syslog("Mar 11 06:20:17", LOST), "-- Reboot --", syslog("Mar 11 06:40:00", "x"),
    ),
    "journal as json": (journal(BOOT_1, LOST), journal(BOOT_2, LOADED)),
    "first line of the kernel": (
        syslog("Mar 11 06:20:17", LOST), syslog("Mar 11 06:40:00", FIRST),
        syslog("Mar 11 07:40:00", "x"),
    ),
    "over the turn of the year": (
        syslog("Dec 31 23:58:00", LOST), syslog("Jan  1 00:04:00", FIRST),
    ),
    "stamps start again": (
        dmesg(51233.9, LOST), dmesg(0.0, "Command line: quiet"), dmesg(60000.0, "x"),
    ),
    "kmsg": (f"1,1234,51233900121,-;{LOST}", f"6,0,0,-;{FIRST}"),
    "syslog with both stamps": (
        f"Mar 11 06:20:17 gpu-node kernel: [51233.900121] {LOST}",
        f"Mar 11 06:40:17 gpu-node kernel: [   17.200000] {LOADED}",
    ),
    "newest first": (
        syslog("Mar 11 07:40:00", LOADED), f"-- Boot {BOOT_1} --", syslog("Mar 11 06:20:17", LOST),
    ),
    "the boot before is pasted behind": (
        "2026-03-11T06:40:00+0000 n kernel: " + FIRST,
        "2026-03-11T06:41:00+0000 n kernel: " + LOADED,
        "2026-03-09T01:00:00+0000 n kernel: " + FIRST,
        "2026-03-09T02:00:00+0000 n kernel: " + LOST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", BEFORE.values(), ids=BEFORE)
def test_what_was_before_the_last_boot_is_history(lines: tuple[str, ...]) -> None:
    log = read(*lines)
    assert said(log) == [(79, True)]
    assert node_action(log).word == "none"


NOW = {
    "one boot from its start": (dmesg(0.0, FIRST), dmesg(0.0, "BIOS"), dmesg(12.0, LOST)),
    "after the boot": (syslog("Mar 11 06:10:00", FIRST), syslog("Mar 11 06:20:17", LOST)),
    "separator first": (f"-- Boot {BOOT_1} --", syslog("Mar 11 06:20:17", LOST)),
    "processors out of order": (dmesg(512.000310, LOST), dmesg(512.000122, LOADED)),
    "newest first with both stamps": (
        f"Mar 11 06:20:17 gpu-node kernel: [51233.900121] {LOST}",
        f"Mar 11 06:10:17 gpu-node kernel: [50633.900121] {LOADED}",
        f"Mar 11 05:10:17 gpu-node kernel: [47033.900121] {LOADED}",
    ),
    "newest first with bare stamps": (
        dmesg(51233.9, LOST), dmesg(50000.0, LOADED), dmesg(40000.0, LOADED), dmesg(0.0, FIRST),
    ),
    "the load of the driver pasted behind": (dmesg(51233.9, LOST), dmesg(17.2, LOADED)),
    "proc/version pasted behind": (dmesg(51233.9, LOST), FIRST),
    "another machine started": (
        syslog("Mar 11 06:20:17", LOST), syslog("Mar 11 06:40:00", FIRST, host="gpu-2"),
    ),
    "two machines through pdsh": (f"n1: {dmesg(51233.9, LOST)}", f"n2: {dmesg(17.0, LOADED)}"),
    "excerpts out of order": (dmesg(51233.9, LOST), dmesg(40000.0, LOADED)),
    "dmesg with differences": ("[51233.9 <    0.1>] " + LOST, "[51234.9 <    1.0>] " + LOADED),
    "a program tells of a boot": (
        syslog("Mar 11 06:20:17", LOST), f"Mar 11 06:40:00 gpu-node agent[7]: {FIRST}",
    ),
    "the clock of summer ends": (
        "2026-10-25 02:59:00 n kernel: " + LOADED, "2026-10-25 02:01:00 n kernel: " + LOST,
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", NOW.values(), ids=NOW)
def test_what_is_of_this_boot_counts(lines: tuple[str, ...]) -> None:
    assert said(read(*lines)) == [(79, False)]


def test_what_comes_again_is_of_now_and_counted_over_all_boots() -> None:
    (event,) = read(
        dmesg(500.0, LOST), dmesg(501.0, LOST), dmesg(0.0, FIRST), dmesg(90.0, LOST)
    ).events
    assert (event.before_boot, event.boots, event.count) == (False, 2, 3)
    assert (event.first_time, event.last_time, event.line) == ("500.000000", "90.000000", 4)


def test_a_code_follows_none_of_an_earlier_boot() -> None:
    torn = "NVRM: Xid (PCI:0000:3b:00): 45, pid=1, name=a, Ch 00000008"
    log = read(dmesg(500.0, LOST), dmesg(0.0, FIRST), dmesg(90.0, torn))
    assert [(event.code, event.follow_up_of) for event in log.events] == [(79, None), (45, None)]


def test_of_a_condition_remains_the_word_and_of_a_recovery_nothing_to_do() -> None:
    log = read(
        dmesg(5.0, "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1463)"),
        dmesg(9.0, "pcieport 0000:17:01.0: AER: Uncorrected (Fatal) error message received"),
        dmesg(0.0, FIRST),
    )
    assert (log.conditions, log.pcie_errors) == ((), ())
    assert [past.name for past in log.past] == ["adapter-init-failed", "pcie-error"]


def test_what_fails_in_each_boot_is_no_history() -> None:
    failed = "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x26:0x56:1463)"
    log = read(dmesg(5.0, failed), dmesg(0.0, FIRST), dmesg(5.1, failed))
    assert [said.line for said in log.conditions] == [3]
    assert log.past == ()


def test_boots_without_end_are_kept_in_bounds() -> None:
    lines = [text for _ in range(300) for text in (dmesg(9.0, LOST), dmesg(0.0, FIRST))]
    (event,) = read(*lines, cut=4096).events
    assert (event.before_boot, event.boots, event.count) == (True, 300, 300)
