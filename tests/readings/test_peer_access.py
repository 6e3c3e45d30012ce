"""`nvidia-smi topo -p2p`, pasted: recognised and judged, whatever the blanks between its cells."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor import readings, registry
from gpudoctor.facts.node import peer_access_text
from gpudoctor.report import Report, Severity, Subject
from gpudoctor.sources.text import open_input

CHECKS = registry.load()
LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


def table(*rows: str, blank: str = "\t") -> str:
    head = blank.join(f"GPU{number}" for number in range(len(rows)))
    body = "".join(
        f" GPU{number}{blank}{blank.join(row.split())}{blank}\n" for number, row in enumerate(rows)
    )
    return f" {blank}{head}{blank}\n{body}{LEGEND}"


def explain(tmp_path: Path, content: str) -> tuple[str, Report]:
    path = tmp_path / "pasted"
    path.write_text(content)
    with open_input(str(path)) as text:
        found = readings.recognise(text)
        return found.name, readings.judge(found.read(text), CHECKS)


ALL_OK = ("X OK OK", "OK X OK", "OK OK X")
NONE = ("X CNS", "CNS X")


@pytest.mark.parametrize("blank", ["\t", "     "])
@pytest.mark.parametrize(
    ("rows", "severity"),
    [
        (ALL_OK, None),
        (("X OK NS", "OK X NS", "OK NS X"), None),
        (NONE, Severity.INFO),
        (("X OK CNS", "OK X CNS", "CNS CNS X"), Severity.WARNING),
        (("X DR", "DR X"), Severity.WARNING),
    ],
    ids=["all", "some", "none", "one without", "switched off"],
)
def test_peer_access(
    tmp_path: Path, rows: tuple[str, ...], severity: Severity | None, blank: str
) -> None:
    kind, report = explain(tmp_path, table(*rows, blank=blank))
    assert kind == "peer-access"
    found = [(finding.name, finding.severity) for finding in report.findings]
    assert found == ([] if severity is None else [("p2p-disabled", severity)])
    assert not report.unknown


def test_a_table_of_nvlink_beside_one_that_is_all_right(tmp_path: Path) -> None:
    nvlink = table("X NS NS", "NS X NS", "NS NS X")
    assert explain(tmp_path, table(*ALL_OK) + nvlink)[1].findings == ()


def test_the_matrix_of_paths_is_another_table(tmp_path: Path) -> None:
    paths = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-55\nGPU1\tNV18\t X \t0-55\n"
    assert explain(tmp_path, paths)[0] == "topology"
    assert peer_access_text.rows_seen(paths) == 0


@given(st.text(alphabet="GPU012X OKCNS\t\n", max_size=200))
def test_any_text_is_taken(text: str) -> None:
    found = peer_access_text.parse(text, Subject("Host", "x"), "x")
    assert found is None or found.rows
