"""The engine: running checks, linking causes, picking roots, certainty, unknowns, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudoctor import catalogue, diagnosis
from gpudoctor.checking import CheckSet, Draft, Result, finding
from gpudoctor.diagnosis import Diagnosis
from gpudoctor.registry import Registry
from gpudoctor.report import (
    Certainty,
    Evidence,
    Report,
    ReportSubject,
    Severity,
    Subject,
    Unknown,
    Verdict,
)

POD = Subject("Pod", "trainer-0", "ml")
NODE = Subject("Node", "gpu-1")
ENTRIES = {
    "HW001-broken-card": ("critical", ["full-node", "slow"], ["warning"]),
    "SCH001-full-node": ("error", ["slow"], ["info"]),
    "WKL001-slow": ("warning", [], []),
    "NET001-left": ("error", ["right"], []),
    "NCL001-right": ("error", ["left"], []),
}


class Facts:
    """A fact type of these tests alone."""


class OtherFacts:
    """One that no check here takes."""


@pytest.fixture
def runbooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "engine_runbooks"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, (severity, explains, may_be) in ENTRIES.items():
        (folder / f"{name}.md").write_text(
            f'+++\nseverity = "{severity}"\ntitle = "{{what}} is wrong"\naudience = "admin"\n'
            f'blame = "node"\nexplains = {explains}\nmay_be = {may_be}\n[fix]\n'
            f'admin = "Repair {{what}}."\nuser = "Wait."\n+++\n# {name}\n'
        )
    (folder / catalogue.INDEX).write_bytes(catalogue.build_index(folder))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "engine_runbooks", raising=False)
    return "engine_runbooks"


Diagnose = Callable[..., Diagnosis]


@pytest.fixture
def diagnose(runbooks: str) -> Diagnose:
    def run(*results: Result | Exception, **options: object) -> Diagnosis:
        checks = CheckSet(runbooks)

        @checks.check(Facts)
        def rule(_facts: Facts) -> Iterator[Result]:
            for result in results:
                if isinstance(result, Exception):
                    raise result
                yield result

        return diagnosis.diagnose(Registry([checks]), [Facts()], **options)  # type: ignore[arg-type]

    return run


def draft(name: str, subject: Subject = POD, **more: object) -> Draft:
    return finding(name, subject, "so it is", **more)  # type: ignore[arg-type]


def names(found: Diagnosis) -> list[str]:
    return [root.partition("@")[0] for root in found.root_ids]


def test_cause_becomes_the_root_and_the_chain_is_linked_both_ways(diagnose: Diagnose) -> None:
    found = diagnose(draft("slow"), draft("full-node"), draft("broken-card", related=(POD,)))
    assert names(found) == ["broken-card"]
    by_name = {each.name: each for each in found.findings}
    assert by_name["slow"].caused_by == (
        "full-node@Pod/ml/trainer-0",
        "broken-card@Pod/ml/trainer-0",
    )
    assert by_name["broken-card"].explains == (by_name["slow"].id, by_name["full-node"].id)


def test_findings_about_different_things_are_not_linked(diagnose: Diagnose) -> None:
    found = diagnose(draft("full-node"), draft("slow", Subject("Pod", "other", "ml")))
    assert names(found) == ["full-node", "slow"]


def test_a_device_concerns_the_object_that_has_it(diagnose: Diagnose) -> None:
    card = Subject("Node", "gpu-1", device="GPU3")
    found = diagnose(draft("broken-card", card), draft("slow", NODE))
    assert names(found) == ["broken-card"]


def test_a_circle_is_cut_at_the_lower_layer(diagnose: Diagnose) -> None:
    found = diagnose(draft("right"), draft("left"))
    assert names(found) == ["left"]


def test_info_is_never_a_root_and_never_takes_the_root_from_another(diagnose: Diagnose) -> None:
    found = diagnose(draft("full-node", severity=Severity.INFO), draft("slow"))
    assert names(found) == ["slow"]


def test_worst_root_leads(diagnose: Diagnose) -> None:
    found = diagnose(
        draft("slow"), draft("full-node", NODE), draft("broken-card", Subject("X", "y"))
    )
    assert names(found) == ["broken-card", "full-node", "slow"]


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_equally_sure_the_worse_gives_its_words(diagnose: Diagnose, order: int) -> None:
    mild = finding("full-node", NODE, "mild", severity=Severity.INFO, values={"what": "a"})
    bad = finding("full-node", NODE, "bad", values={"what": "b"})
    (only,) = diagnose(*[mild, bad][::order]).findings
    assert (only.detail, only.severity) == ("bad", Severity.ERROR)


def test_same_finding_by_two_rules_is_one_with_both_evidences(diagnose: Diagnose) -> None:
    first = finding("slow", POD, "perhaps", Evidence("a"), certainty=Certainty.POSSIBLE)
    second = finding("slow", POD, "surely", Evidence("b"), Evidence("a"))
    found = diagnose(first, second)
    assert len(found.findings) == 1
    assert found.findings[0].detail == "surely"
    assert found.findings[0].certainty is Certainty.CERTAIN
    assert [item.object for item in found.findings[0].evidence] == ["b", "a"]


def test_the_same_evidence_is_said_once(diagnose: Diagnose) -> None:
    (only,) = diagnose(
        finding("slow", POD, "", Evidence("a"), Evidence("b"), Evidence("a"))
    ).findings
    assert [item.object for item in only.evidence] == ["a", "b"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (Certainty.CERTAIN, Certainty.CERTAIN, Certainty.CERTAIN),
        (Certainty.CERTAIN, Certainty.POSSIBLE, Certainty.LIKELY),
        (Certainty.POSSIBLE, Certainty.CERTAIN, Certainty.CERTAIN),
    ],
)
def test_of_two_equally_sure_rules_only_what_both_lean_on_counts(
    diagnose: Diagnose, first: Certainty, second: Certainty, expected: Certainty
) -> None:
    found = diagnose(
        draft("slow", certainty=first, leans_on=("Node",)),
        draft("slow", certainty=second),
        is_complete=lambda _kind: False,
    )
    assert found.findings[0].certainty is expected


def test_of_equal_severity_the_surest_leads(diagnose: Diagnose) -> None:
    found = diagnose(
        draft("left", certainty=Certainty.POSSIBLE),
        draft("full-node", NODE, certainty=Certainty.LIKELY),
        draft("full-node", Subject("X", "y")),
    )
    assert [each.certainty.value for each in found.findings] == ["certain", "likely", "possible"]


@pytest.mark.parametrize(
    ("complete", "expected"), [(True, Certainty.CERTAIN), (False, Certainty.LIKELY)]
)
def test_leaning_on_an_incomplete_kind_is_at_most_likely(
    diagnose: Diagnose, complete: bool, expected: Certainty
) -> None:
    found = diagnose(
        draft("slow", leans_on=("Node",)), is_complete=lambda kind: kind == "Pod" or complete
    )
    assert found.findings[0].certainty is expected


def test_possible_does_not_become_likely_by_leaning(diagnose: Diagnose) -> None:
    leaning = draft("slow", leans_on=("Node",), certainty=Certainty.POSSIBLE)
    found = diagnose(leaning, is_complete=lambda _kind: False)
    assert found.findings[0].certainty is Certainty.POSSIBLE


def test_a_check_that_raises_becomes_an_unknown_and_keeps_what_it_found(
    diagnose: Diagnose,
) -> None:
    found = diagnose(draft("slow"), ValueError("boom"))
    assert names(found) == ["slow"]
    assert "ValueError: boom" in found.unknown[0].why
    assert found.needed_unknown


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (draft("unheard-of"), "no runbook for finding unheard-of"),
        (draft("slow", severity=Severity.CRITICAL), "does not allow severity critical"),
    ],
)
def test_a_rule_that_breaks_the_catalogue_is_said(
    diagnose: Diagnose, bad: Draft, said: str
) -> None:
    found = diagnose(bad)
    assert found.findings == ()
    assert said in found.unknown[0].why


def test_titles_and_fixes_are_filled_and_a_missing_value_shows_its_name(
    diagnose: Diagnose,
) -> None:
    filled, unfilled = diagnose(
        draft("full-node", values={"what": "it"}), draft("slow", NODE)
    ).findings
    assert (filled.title, filled.fix) == ("it is wrong", "Repair it.")
    assert unfilled.title == "what is wrong"


def test_own_fix_replaces_the_one_for_the_main_audience(diagnose: Diagnose) -> None:
    found = diagnose(draft("slow", fix="Do this."))
    assert found.findings[0].fix == "Do this."
    assert found.findings[0].fixes.user == "Wait."


def test_otherwise_is_asked_only_where_nothing_was_found(runbooks: str) -> None:
    checks = CheckSet(runbooks)

    @checks.check(Facts)
    def rule(_facts: Facts) -> Iterator[Result]:
        yield draft("slow")

    @checks.check(OtherFacts)
    def last_resort(_facts: OtherFacts) -> Iterator[Result]:
        yield draft("full-node")

    registry = Registry([checks])
    loud = diagnosis.diagnose(registry, [Facts()], otherwise=[OtherFacts()])
    silent = diagnosis.diagnose(registry, [], otherwise=[OtherFacts()])
    assert names(loud) == ["slow"]
    assert names(silent) == ["full-node"]


def test_deselected_findings_are_left_out(diagnose: Diagnose) -> None:
    found = diagnose(draft("slow"), draft("full-node"), selected=lambda e: e.layer == "WKL")
    assert names(found) == ["slow"]


def verdict(found: Diagnosis, *, starting: bool = False, needed: bool = False) -> Verdict:
    built = diagnosis.report(
        found,
        ReportSubject("Pod", "trainer-0", "ml"),
        observed_at=None,
        starting=starting,
        needed_unknown=needed,
    )
    return built.verdict


def test_verdicts(diagnose: Diagnose) -> None:
    assert verdict(diagnose(draft("full-node"))) is Verdict.FAILING
    assert verdict(diagnose(draft("broken-card"))) is Verdict.FAILING
    assert verdict(diagnose(draft("slow"))) is Verdict.WARNING
    assert verdict(diagnose(draft("full-node", severity=Severity.INFO))) is Verdict.HEALTHY
    assert verdict(diagnose()) is Verdict.HEALTHY
    assert verdict(diagnose(), starting=True) is Verdict.STARTING
    assert verdict(diagnose(), needed=True) is Verdict.UNKNOWN
    assert verdict(diagnose(Unknown("x", "denied")), starting=True) is Verdict.UNKNOWN
    assert verdict(diagnose(draft("slow"), Unknown("x", "denied"))) is Verdict.WARNING


def test_verdict_of_children_counts(diagnose: Diagnose) -> None:
    def child(found: Diagnosis, **options: bool) -> Report:
        return diagnosis.report(found, ReportSubject("Pod", "p"), observed_at=None, **options)  # type: ignore[arg-type]

    def parent(*children: Report) -> Verdict:
        return diagnosis.report(
            diagnose(), ReportSubject("Job", "j"), observed_at=None, children=children
        ).verdict

    failing, well = child(diagnose(draft("full-node"))), child(diagnose())
    unknown = child(diagnose(), needed_unknown=True)
    starting = child(diagnose(), starting=True)
    assert parent(well, failing) is Verdict.FAILING
    assert parent(well, unknown, starting) is Verdict.UNKNOWN
    assert parent(well, starting) is Verdict.STARTING
    assert parent(well) is Verdict.HEALTHY
