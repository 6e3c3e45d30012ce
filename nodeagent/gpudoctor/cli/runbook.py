"""`gpudoctor runbook`: the list of findings, or one's page."""

from __future__ import annotations

import difflib
import re
import sys

import click
from click.shell_completion import CompletionItem

from gpudoctor import registry
from gpudoctor.catalogue import Catalogue, Entry
from gpudoctor.errors import InputError
from gpudoctor.report import Layer

_LAYER_TITLES = {
    Layer.HARDWARE: "Hardware and kernel log",
    Layer.DRIVER: "Driver and CUDA",
    Layer.RUNTIME: "Container toolkit and runtime",
    Layer.DEVICES: "Device plugin, operator, DRA, sharing",
    Layer.SCHEDULING: "Scheduler, quota, queues, gangs, admission",
    Layer.TOPOLOGY: "Topology and NUMA",
    Layer.NETWORK: "RDMA devices and ports",
    Layer.WORKLOAD: "What the pod asks for and its limits",
    Layer.NCCL: "NCCL log",
    Layer.ACCEPTANCE: "Acceptance tests",
}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SHORT_CODE = re.compile(r"^([A-Za-z]{2,4})([0-9]{1,3})$")
_MAX_NEAR = 6


def _complete(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    names = sorted(entry.name for entry in registry.load().catalogue)
    return [CompletionItem(name) for name in names if name.startswith(typed.lower())]


@click.command("runbook")
@click.argument("name", required=False, metavar="[NAME|CODE]", shell_complete=_complete)
@click.option("--no-color", is_flag=True, help="No colour, even on a terminal.")
def command(name: str | None, no_color: bool) -> None:
    """List all findings, or print the runbook of one by its name or code.

    A page is laid out on a terminal, and plain Markdown elsewhere.
    """
    catalogue = registry.load().catalogue
    if name is None:
        _list(catalogue, no_color)
    else:
        _page(catalogue, _find(catalogue, name), no_color)


def _find(catalogue: Catalogue, name: str) -> Entry:
    short = _SHORT_CODE.match(name)
    found = catalogue.get(f"{short[1]}{int(short[2]):03}" if short else name)
    if found is not None:
        return found
    known = {entry.name: entry.code for entry in catalogue}
    wanted = name.lower()
    near = [other for other in known if wanted in other or other in wanted]
    near += difflib.get_close_matches(wanted, known, _MAX_NEAR)
    by_code = {code: other for other, code in known.items()}
    near += [by_code[code] for code in difflib.get_close_matches(name.upper(), by_code, 3, 0.8)]
    listed = ", ".join(f"{other} ({known[other]})" for other in [*dict.fromkeys(near)][:_MAX_NEAR])
    hint = f"near it: {listed}" if listed else "`gpudoctor runbook` lists them"
    raise InputError(f"no runbook {name!r}; {hint}")


def _list(catalogue: Catalogue, no_color: bool) -> None:
    """Write one line a finding for other programs, and groups with titles for people."""
    entries = sorted(catalogue, key=lambda entry: (entry.layer.depth, entry.code))
    if not sys.stdout.isatty():
        for entry in entries:
            click.echo(f"{entry.code}  {entry.severity:8}  {entry.name}  {_title(entry)}")
        return
    from gpudoctor.render.paper import Paper

    paper = Paper(sys.stdout, color=False if no_color else None)
    layer = None
    for entry in entries:
        if entry.layer is not layer:
            layer = entry.layer
            paper.blank()
            paper.text(_LAYER_TITLES[layer], "bold")
        code = paper.style(entry.code, "cyan")
        paper.text(f"{entry.name} ({entry.severity})", first=f"  {code}  ")
        paper.text(_title(entry), "dim", first=" " * 10)


def _title(entry: Entry) -> str:
    """Return the title with what each occurrence fills in, in angle brackets."""
    return _PLACEHOLDER.sub(r"<\1>", entry.title)


def _page(catalogue: Catalogue, entry: Entry, no_color: bool) -> None:
    page = catalogue.page(entry).rstrip()
    if not sys.stdout.isatty():
        click.echo(page)
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    from gpudoctor.render.paper import Paper

    paper = Paper(sys.stdout, color=False if no_color else None)
    # Colours of the terminal's own palette: rich's defaults paint black behind code.
    theme = Theme({"markdown.code": "cyan", "markdown.h2": "bold", "markdown.h1": "bold underline"})
    console = Console(width=paper.width, no_color=no_color or None, highlight=False, theme=theme)
    console.print(Markdown(page, hyperlinks=False, code_theme="ansi_dark"))
    paper.blank()
    about = f"{entry.code}, {entry.severity}; for: {entry.audience}; change: {entry.blame}"
    paper.text(about, "dim")
