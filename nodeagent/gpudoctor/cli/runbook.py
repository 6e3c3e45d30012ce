"""`gpudoctor runbook`: the list of findings, or one's page."""

from __future__ import annotations

import click

from gpudoctor import registry
from gpudoctor.errors import InputError


@click.command("runbook")
@click.argument("name", required=False, metavar="[NAME|CODE]")
def command(name: str | None) -> None:
    """List all findings, or print the runbook of one by its name or code."""
    catalogue = registry.load().catalogue
    if name is None:
        for entry in sorted(catalogue, key=lambda entry: (entry.layer.depth, entry.code)):
            click.echo(f"{entry.code}  {entry.severity:8}  {entry.name}")
        return
    found = catalogue.get(name)
    if found is None:
        raise InputError(f"no runbook {name!r}; `gpudoctor runbook` lists them")
    click.echo(f"{found.code} {found.name}\n")
    click.echo(catalogue.page(found).rstrip())
