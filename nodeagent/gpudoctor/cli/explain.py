"""`gpudoctor explain`: paste anything; it says what the text shows and what to do."""

from __future__ import annotations

import sys
from typing import Any

import click

from gpudoctor import diagnosis, readings, registry
from gpudoctor.cli import output
from gpudoctor.errors import InputError
from gpudoctor.render.clean import one_line
from gpudoctor.report import Report, ReportSubject
from gpudoctor.sources.text import STDIN, TextInput, open_input


@click.command("explain")
@click.argument("files", nargs=-1, metavar="[FILE…|-]")
@click.option(
    "--kind",
    type=click.Choice(readings.names()),
    metavar="KIND",
    help=f"What the text is, when it is not recognised: {', '.join(readings.names())}.",
)
@output.options
@click.pass_context
def command(
    ctx: click.Context, /, files: tuple[str, ...], kind: str | None, **emitting: Any
) -> None:
    """Explain a log, a table, a kernel log or a Kubernetes dump.

    Reads standard input without FILE. Several files are explained one by one; where one cannot be
    read, the others are, and the exit status is 2.
    """
    if not files and sys.stdin is not None and sys.stdin.isatty():
        click.echo("gpudoctor: paste the text, then press Ctrl-D", err=True)
    checks = registry.load()
    reports, refusals = [], []
    for name in files or (STDIN,):
        try:
            with open_input(name) as text:
                reports.append(_explain(text, kind, checks))
        except InputError as error:
            refusals.append(error)
    status = output.emit(_together(reports), **emitting) if reports else 0
    for refusal in refusals[:-1]:
        click.echo(f"gpudoctor: {one_line(str(refusal))}", err=True)
    if refusals:
        raise refusals[-1]
    ctx.exit(status)


def _explain(text: TextInput, kind: str | None, checks: registry.Registry) -> Report:
    text_format = readings.load(kind) if kind else readings.recognise(text)
    return readings.judge(text_format.read(text), checks)


def _together(reports: list[Report]) -> Report:
    """Return the report, or one that has the several as its children: an answer is one document."""
    if len(reports) == 1:
        return reports[0]
    nothing = diagnosis.Diagnosis(findings=(), root_ids=(), unknown=())
    subject = ReportSubject("Files", f"{len(reports)} texts")
    return diagnosis.report(nothing, subject, observed_at=None, children=tuple(reports))
