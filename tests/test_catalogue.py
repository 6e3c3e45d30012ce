"""The runbooks and their index: one catalogue, complete and consistent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpudoctor import catalogue, registry
from gpudoctor.catalogue import Entry

RUNBOOKS = Path(__file__).parent.parent / "runbooks"
PAGES = sorted(RUNBOOKS.glob("*-*.md"))
SECTIONS = (
    "What it means",
    "Why it matters",
    "Confirm by hand",
    "When it is not this",
    "Fix",
    "Verify",
    "Sources",
)

RETIRED = {
    "HW014": "gpu-pcie-degraded (TOP022), which NVML finds as well as sysfs",
}
"""Codes that must not be used again, and what has taken their place."""


def test_no_code_comes_back() -> None:
    assert RETIRED.keys().isdisjoint(path.stem.partition("-")[0] for path in PAGES)


def test_index_is_that_of_the_pages() -> None:
    assert (RUNBOOKS / catalogue.INDEX).read_bytes() == catalogue.build_index(RUNBOOKS), (
        "run `make index` and commit runbooks/index.json"
    )


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_page_has_every_section_and_a_fix_for_its_audience(page: Path) -> None:
    entry = catalogue.read_entry(page)
    _, body = catalogue.split_page(page.read_text(encoding="utf-8"))
    headings = [line[3:] for line in body.splitlines() if line.startswith("## ")]
    assert headings == list(SECTIONS)
    assert getattr(entry.fixes, entry.audience), "no fix for the audience"
    assert entry.severity not in entry.may_be
    assert "http" in body.split("## Sources")[1]


def test_what_is_explained_exists() -> None:
    entries: list[Entry] = list(registry.load().catalogue)
    names = {entry.name for entry in entries}
    dangling = {entry.name: sorted(set(entry.explains) - names) for entry in entries}
    assert {name: missing for name, missing in dangling.items() if missing} == {}
