"""`gpudoctor nccl`: the logs of one job, many ranks, in one file or many."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from gpudoctor import readings, registry
from gpudoctor.cli import output
from gpudoctor.sources.text import STDIN, open_input


@click.command("nccl")
@click.argument("files", nargs=-1, metavar="[FILE…|-]")
@output.options
@click.pass_context
def command(ctx: click.Context, /, files: tuple[str, ...], **emitting: Any) -> None:
    """Say what the NCCL logs of one job show: network, GDR, what failed first and where.

    FILEs are read together, plain, gzip or zstd: one a rank, one a pod, or one for all. Reads
    standard input without FILE.
    """
    from gpudoctor.readings import nccl_log

    checks = registry.load()
    with ExitStack() as stack:
        texts = [stack.enter_context(open_input(name)) for name in files or (STDIN,)]
        reading = nccl_log.read_all(texts)
    report = readings.judge(reading, checks)
    ctx.exit(output.emit(report, **emitting))
