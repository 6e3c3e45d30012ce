"""A kernel log: dmesg, journalctl -k, syslog or /dev/kmsg, of any size."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from gpudoctor.facts.node.kernel_log import published
from gpudoctor.facts.node.kernel_log_reader import CHUNK_BYTES, read_kernel_log
from gpudoctor.readings import Format, Reading
from gpudoctor.report import ReportSubject, Subject
from gpudoctor.sources.text import TextInput

_KERNEL_LINE = re.compile(
    r"^(?:.{0,80}NVRM: |.{0,80}nvidia-nvswitch\d+: SXid|.{0,80}\bnouveau [0-9a-f]{4}:"
    # a program's own line that goes through the kernel's log says nothing of the kernel's
    r"|(?:\x1b\[[\d;]*m)*(?:<\d{1,3}>)?(?:kern +:[a-z]+ *: )?\[ *\d+\.\d{6}\] "
    r"(?![\w.@-]{1,40}\[\d+\]: (?!segfault |bad frame|.{0,20}\btrap ))"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "
    r"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:\d\d "
    r"|\d{1,4},\d+,\d+,[^;]*;"
    r"|(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\dT[\d:.]{8,15}\S{0,6}"
    r"|\[ *\d+\.\d+\]|\d{10}\.\d{6}) \S+ kernel(?:\[\d+\])?: "
    r"|\{.*\"_TRANSPORT\" ?: ?\"kernel\"|kern +:[a-z]+ *: "
    r"|\{.*\"sequence\" ?: ?\d+,.*\"msg\" ?: ?\"|[\w.:-]{1,64}: +kern: +[a-z]+: \[)",
    re.MULTILINE,
)


def _matches(head: str) -> int:
    return sum(1 for _ in _KERNEL_LINE.finditer(head))


def _chunks(text: TextInput) -> Iterator[bytes]:
    stream = text.open()
    while chunk := stream.read(CHUNK_BYTES):
        yield chunk


def _read(text: TextInput) -> Reading:
    log = read_kernel_log(_chunks(text), Subject("Host", "local"), text.name)
    told = (log.events, log.conditions, log.kills, log.iommu_faults, log.past)
    hosts = {one.host for group in told for one in group}
    about = ReportSubject("KernelLog", text.name)
    if len(hosts) == 1 and (host := hosts.pop()) is not None:
        log = msgspec.structs.replace(log, subject=Subject("Host", host))
        about = ReportSubject("Host", host)
    return Reading(
        subject=about,
        facts=(log,),
        published={"kernel": published(log)},
        is_complete=lambda _kind: True,
    )


FORMAT = Format("kernel-log", _matches, _read)
