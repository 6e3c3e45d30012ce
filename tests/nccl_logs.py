"""Builds NCCL logs for tests, and says what gpudoctor makes of a text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpudoctor import diagnosis, registry
from gpudoctor.facts.nccl import parse
from gpudoctor.facts.nccl.model import NcclLog
from gpudoctor.report import Report, ReportSubject, Severity

_CHECKS = registry.load()


class Rank:
    """One process: it says lines as NCCL would print them."""

    def __init__(self, host: str, rank: int, *, device: int = 0, pid: int = 100) -> None:
        self.rank = rank
        self.pid = pid + rank
        self.host = host
        self.device = device

    def info(self, text: str) -> str:
        return f"{self.host}:{self.pid}:{self.pid + 500} [{self.device}] NCCL INFO {text}"

    def warn(self, text: str, where: str = "transport/net_ib.cc:93") -> str:
        return f"\n{self.host}:{self.pid}:{self.pid + 600} [{self.device}] {where} NCCL WARN {text}"


def pair() -> tuple[Rank, Rank]:
    """Two ranks on two hosts."""
    return Rank("node-a", 0), Rank("node-b", 1)


def start(
    ranks: Iterable[Rank],
    *,
    network: str = "IB",
    nnodes: int = 2,
    adapters: str | None = "[0]mlx5_0:1/IB [1]mlx5_1:1/IB",
    version: str = "2.21.5",
    environment: Iterable[str] = (),
    nranks: int | None = None,
    comm_id: str = "0xabc1",
) -> list[str]:
    """The lines of a start, up to and with Init START."""
    members = list(ranks)
    lines = [f"NCCL version {version}+cuda12.4"]
    for rank in members:
        lines.append(rank.info(f"Bootstrap : Using eth0:10.0.0.{rank.rank + 1}<0>"))
        lines += [rank.info(setting) for setting in environment]
        if adapters is not None:
            lines.append(rank.info(f"NET/IB : Using {adapters} [RO]; OOB eth0:10.0.0.1<0>"))
        else:
            lines.append(rank.info("NET/IB : No device found."))
            lines.append(rank.info("NET/Socket : Using [0]eth0:10.0.0.1<0>"))
        lines.append(rank.info(f"Using network {network}"))
        lines.append(rank.info(comm(rank, nranks or len(members), comm_id) + "- Init START"))
        lines.append(
            rank.info(
                f"comm 0x55{rank.pid:x} rank {rank.rank} nRanks {nranks or len(members)}"
                f" nNodes {nnodes} localRanks 1 localRank 0 MNNVL 0"
            )
        )
    return lines


def comm(rank: Rank, nranks: int, comm_id: str = "0xabc1") -> str:
    return (
        f"ncclCommInitRank comm 0x55{rank.pid:x} rank {rank.rank} nranks {nranks} cudaDev"
        f" {rank.device} nvmlDev {rank.device} busId 1b000 commId {comm_id} "
    )


def ring(
    ranks: Iterable[Rank], via: str = "NET/IB/0/GDRDMA", *, receive: str | None = None
) -> list[str]:
    """Channels of a ring, both directions, and Init COMPLETE."""
    members = list(ranks)
    count = len(members)
    lines = []
    for index, rank in enumerate(members):
        before, after = members[index - 1], members[(index + 1) % count]
        for channel in range(2):
            head = f"Channel {channel:02d}/0 : "
            lines.append(
                rank.info(
                    f"{head}{before.rank}[0] -> {rank.rank}[0] [receive] via {receive or via}"
                )
            )
            lines.append(rank.info(f"{head}{rank.rank}[0] -> {after.rank}[0] [send] via {via}"))
        lines.append(rank.info("Connected all rings"))
        lines.append(rank.info(comm(rank, count) + "- Init COMPLETE"))
    return lines


def read(lines: Iterable[str] | str) -> NcclLog:
    text = lines if isinstance(lines, str) else "\n".join(lines) + "\n"
    return parse([text.encode()], "x.log")


def diagnose(lines: Iterable[str] | str | NcclLog, **changes: Any) -> Report:
    log = lines if isinstance(lines, NcclLog) else read(lines)
    log = msgspec.structs.replace(log, **changes)
    found = diagnosis.diagnose(_CHECKS, [log])
    return diagnosis.report(found, ReportSubject("NcclLog", "x.log"), observed_at=None)


def loud(report: Report) -> set[str]:
    """Names of the findings at warning or above."""
    return {f.name for f in report.findings if f.severity is not Severity.INFO}


def names(report: Report) -> set[str]:
    return {finding.name for finding in report.findings}
