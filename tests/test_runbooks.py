"""The runbook pages as help: what each must offer to whoever reads it at three in the morning."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from gpudoctor import catalogue
from gpudoctor.report import Audience, Layer, Severity

RUNBOOKS = Path(__file__).parent.parent / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*-*.md"))
READERS = {Audience.USER: r"user|owner", Audience.ADMIN: "admin", Audience.HARDWARE: "hardware"}
# What the rules over Kubernetes objects fill in; one vocabulary, so that titles read alike.
OBJECT_PLACEHOLDERS = {
    "claim",
    "class",
    "container",
    "count",
    "device",
    "driver",
    "image",
    "limit",
    "name",
    "network",
    "node",
    "nodes",
    "offered",
    "pod",
    "queue",
    "reason",
    "resource",
    "wanted",
}
OBJECT_LAYERS = {Layer.DEVICES, Layer.SCHEDULING}
OBJECT_PAGES = [page for page in PAGES if page.name[:3] in OBJECT_LAYERS]
WIDTH = 100

every_page = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])


def body_of(page: Path) -> str:
    return catalogue.split_page(page.read_text(encoding="utf-8"))[1]


def section(page: Path, title: str) -> str:
    """Return the text under the heading of that title, fenced blocks included."""
    return re.split(r"(?m)^## ", body_of(page).split(f"## {title}\n", 1)[1])[0]


def commands(text: str) -> list[str]:
    """Return the fenced and indented blocks and the code spans that hold a command line."""
    blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)
    indented = re.findall(r"(?m)^ {4}(\S.*)$", text)
    spans = re.findall(r"`([\w./-]+ [^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
    return blocks + indented + spans


def prose(text: str) -> list[str]:
    """Return the lines outside fenced blocks and tables."""
    lines, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif not fenced and not line.startswith("|"):
            lines.append(line)
    return lines


def test_folder_holds_pages_and_their_index_only() -> None:
    found = {path.name for path in RUNBOOKS.iterdir() if path.name != "__pycache__"}
    assert found == {page.name for page in PAGES} | {"__init__.py", catalogue.INDEX}


@every_page
def test_heading_is_the_name(page: Path) -> None:
    assert body_of(page).splitlines()[0] == f"# {catalogue.read_entry(page).name}"


@every_page
@pytest.mark.parametrize("title", ["Confirm by hand", "Verify"])
def test_has_a_command_to_run(page: Path, title: str) -> None:
    assert commands(section(page, title)), f"no command in {title}"


@every_page
def test_every_fence_is_closed(page: Path) -> None:
    fences = [line for line in body_of(page).splitlines() if line.startswith("```")]
    assert len(fences) % 2 == 0
    assert set(fences[1::2]) <= {"```"}


@every_page
def test_why_it_matters_has_a_figure(page: Path) -> None:
    assert re.search(r"\d", section(page, "Why it matters"))


@every_page
def test_fix_tells_its_readers_apart(page: Path) -> None:
    """Where several readers can do something, the page says which of it is whose."""
    fixes, fix = catalogue.read_entry(page).fixes, section(page, "Fix")
    readers = [who for who in Audience if getattr(fixes, who)]
    unspoken = [who for who in readers if not re.search(READERS[who], fix, re.IGNORECASE)]
    assert len(readers) == 1 or unspoken == []


@every_page
def test_fixes_of_the_front_matter_are_one_line_for_a_terminal(page: Path) -> None:
    fixes = catalogue.read_entry(page).fixes
    for who in Audience:
        text = getattr(fixes, who) or "."
        assert text.endswith(".")
        assert "\n" not in text
        assert len(text) <= 2 * WIDTH, who


@every_page
def test_templates_fill_by_plain_names(page: Path) -> None:
    entry = catalogue.read_entry(page)
    fixes = [text for who in Audience if (text := getattr(entry.fixes, who))]
    for template in (entry.title, *fixes):
        for _, field, spec, conversion in string.Formatter().parse(template):
            assert field is None or re.fullmatch("[a-z_]+", field), template
            assert (spec or "", conversion) == ("", None), template
        if entry.layer in OBJECT_LAYERS:
            assert catalogue.placeholders(template) <= OBJECT_PLACEHOLDERS, template
    assert not entry.title.endswith(".")


@every_page
def test_severities_to_choose_from_go_down(page: Path) -> None:
    entry = catalogue.read_entry(page)
    ranks = [severity.rank for severity in entry.may_be]
    assert ranks == sorted(set(ranks), reverse=True)
    assert Severity.CRITICAL not in entry.may_be


@pytest.mark.parametrize("page", OBJECT_PAGES, ids=[page.stem for page in OBJECT_PAGES])
def test_prose_fits_the_width(page: Path) -> None:
    lines = prose(body_of(page))
    assert [line for line in lines if len(line) > WIDTH and "http" not in line] == []


@every_page
def test_page_is_neither_a_stub_nor_a_book(page: Path) -> None:
    assert 25 <= len(body_of(page).splitlines()) <= 120


@every_page
def test_sources_are_a_list_of_addresses(page: Path) -> None:
    sources = [line for line in section(page, "Sources").splitlines() if line]
    assert sources
    assert all(re.match(r"- .*https?://\S", line) for line in sources), sources


@every_page
def test_names_no_other_finding_that_does_not_exist(page: Path) -> None:
    """A bare kebab-case word that ends a clause of 'When it is not this' is a finding's name."""
    names = {catalogue.read_entry(other).name for other in PAGES}
    bare = re.sub(r"`[^`]*`", "", section(page, "When it is not this"))
    referred = re.findall(r"(?::\s+|\()([a-z0-9]+(?:-[a-z0-9]+)+)[.,)]", bare)
    assert [name for name in referred if name not in names] == []


LAYERS = (r"1\.", r"2\.", r"3\.")
OF_NCCL = [p for p in PAGES if p.name[:3] in ("NCL", "ACC") or p.name[:5] in ("NET05", "NET06")]


@pytest.mark.parametrize("page", OF_NCCL, ids=[page.stem for page in OF_NCCL])
def test_findings_of_nccl_walk_the_three_layers_with_the_lines_to_expect(page: Path) -> None:
    """Pod network, device plugin, NCCL's environment: each a command and what it prints."""
    lines = section(page, "Confirm by hand").splitlines()
    for layer in LAYERS:
        at = [n for n, line in enumerate(lines) if re.match(rf"[$#] .* # ?{layer} ", line)]
        assert at, f"no command of layer {layer}"
        assert not re.match(r"[$#`]|$", lines[at[0] + 1]), f"nothing to expect after {lines[at[0]]}"
