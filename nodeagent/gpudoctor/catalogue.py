"""The catalogue of findings: the front matter of the runbooks, and nothing else.

A runbook is `<CODE>-<name>.md`: TOML front matter between two lines of `+++`, then the page.
Start-up reads the generated `index.json` beside the pages; `python -m gpudoctor.catalogue DIR`
writes it, and a test compares the two.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gpudoctor.report import Audience, Blame, Fixes, Layer, Severity

INDEX = "index.json"
_FILE_NAME = r"^(?P<code>(?P<layer>[A-Z]{2,4})[0-9]{3})-(?P<name>[a-z0-9-]+)\.md$"
_FRONT_MATTER = r"(?s)\A\+\+\+\n(?P<toml>.*?)\n\+\+\+\n(?P<body>.*)\Z"


class CatalogueError(Exception):
    """A runbook or an index that cannot be used: the message says which and why."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is the same for each occurrence of a finding.

    `title` and the `fixes` may hold `{placeholders}` that the rule's values fill. `may_be` are
    the other severities that its rule may give. `explains` are names of findings that this one
    is the cause of when both are present on the same pod, node or device.
    """

    code: str
    name: str
    layer: Layer
    severity: Severity
    title: str
    audience: Audience
    blame: Blame
    fixes: Fixes
    may_be: tuple[Severity, ...] = ()
    explains: tuple[str, ...] = ()


class _FrontMatter(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    severity: Severity
    title: str
    audience: Audience
    blame: Blame
    fix: Fixes
    may_be: tuple[Severity, ...] = ()
    explains: tuple[str, ...] = ()


class Catalogue:
    """All known findings, by name and by code, and the way to their pages."""

    def __init__(self) -> None:
        self._by_name: dict[str, Entry] = {}
        self._by_code: dict[str, Entry] = {}
        self._folders: dict[str, Path] = {}
        self._packages: set[str] = set()

    def load(self, package: str) -> None:
        """Add the runbooks of a package, once.

        CatalogueError if its index is missing or clashes with what is there; then nothing of it
        is added.
        """
        if package in self._packages:
            return
        folder = _folder(package)
        try:
            raw = folder.joinpath(INDEX).read_bytes()
            entries = msgspec.json.decode(raw, type=list[Entry])
        except (OSError, msgspec.MsgspecError) as error:
            raise CatalogueError(
                f"runbooks of {package}: {INDEX} cannot be read: {error}"
            ) from error
        for entry in entries:
            if entry.name in self._by_name or entry.code in self._by_code:
                clash = f"{entry.code}-{entry.name}"
                raise CatalogueError(f"runbooks of {package}: {clash} exists twice")
        for entry in entries:
            self._by_name[entry.name] = entry
            self._by_code[entry.code] = entry
            self._folders[entry.name] = folder
        self._packages.add(package)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_name.values())

    def get(self, name_or_code: str) -> Entry | None:
        """Return the entry of that name or code (any case), None if there is none."""
        return self._by_name.get(name_or_code.lower()) or self._by_code.get(name_or_code.upper())

    def page(self, entry: Entry) -> str:
        """Return the runbook's Markdown without its front matter."""
        page = self._folders[entry.name].joinpath(f"{entry.code}-{entry.name}.md")
        return split_page(page.read_text(encoding="utf-8"))[1]


def _folder(package: str) -> Path:
    # Not importlib.resources: loading it would cost every start more than all the runbooks do.
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    if not places:
        raise CatalogueError(f"runbooks of {package}: there is no such package")
    return Path(places[0])


def split_page(text: str) -> tuple[str, str]:
    """Split a page into its TOML front matter and its Markdown; CatalogueError without one."""
    match = re.match(_FRONT_MATTER, text)
    if match is None:
        raise CatalogueError("no front matter between two lines of +++")
    return match["toml"], match["body"].lstrip("\n")


def placeholders(template: str) -> set[str]:
    """Return the names of the `{placeholders}` in a title or fix."""
    import string  # imported late: the tests of the pages ask

    return {field for _, field, _, _ in string.Formatter().parse(template) if field}


def read_entry(path: Path) -> Entry:
    """Read one runbook page; CatalogueError says what is wrong with it."""
    match = re.match(_FILE_NAME, path.name)
    if match is None:
        raise CatalogueError(f"{path.name}: not <CODE>-<name>.md")
    import tomllib  # imported late: start-up reads the index, not the pages

    try:
        front = msgspec.convert(
            tomllib.loads(split_page(path.read_text(encoding="utf-8"))[0]), _FrontMatter
        )
        layer = Layer(match["layer"])
    except (CatalogueError, tomllib.TOMLDecodeError, msgspec.MsgspecError, ValueError) as error:
        raise CatalogueError(f"{path.name}: {error}") from error
    return Entry(
        code=match["code"],
        name=match["name"],
        layer=layer,
        severity=front.severity,
        title=front.title,
        audience=front.audience,
        blame=front.blame,
        fixes=front.fix,
        may_be=front.may_be,
        explains=front.explains,
    )


def build_index(folder: Path) -> bytes:
    """Return the index of a folder of runbooks: JSON, one entry a line, sorted by code."""
    entries = sorted(
        (read_entry(path) for path in folder.glob("*-*.md")), key=lambda entry: entry.code
    )
    lines = ",\n".join(msgspec.json.encode(entry).decode() for entry in entries)
    return f"[\n{lines}\n]\n".encode()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.joinpath(INDEX).write_bytes(build_index(target))
