"""Checks by entry point: ours, a third party's, one that cannot be loaded, one that is no set."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import gpudoctor_checks
from gpudoctor import catalogue, diagnosis, registry
from gpudoctor.facts.kubernetes.situation import PodSituation
from tests import kubernetes_objects as k8s

PAGE = """+++
severity = "warning"
title = "{pod} has no team label"
audience = "user"
blame = "request"

[fix]
user = "Add the label team."
+++
# no-team-label
"""
CODE = """
from gpudoctor.checking import CheckSet, finding
from gpudoctor.facts.kubernetes.situation import PodSituation

CHECKS = CheckSet(runbooks="acme_runbooks")

@CHECKS.check(PodSituation)
def no_team_label(situation):
    if "team" not in situation.pod.meta.labels:
        values = {"pod": situation.pod.meta.short}
        yield finding("no-team-label", situation.subject, "It has no label team.", values=values)

@CHECKS.check(PodSituation)
def broken(situation):
    raise RuntimeError("out of order")
"""


def distribution(site: Path, name: str, entry_points: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{entry_points}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "acme_checks.py").write_text(CODE)
    pages = tmp_path / "acme_runbooks"
    pages.mkdir()
    (pages / "__init__.py").write_text("")
    (pages / "ACM001-no-team-label.md").write_text(PAGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("acme_checks", "acme_runbooks"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def situation() -> PodSituation:
    return k8s.situation_of(k8s.cluster(k8s.pod("train-0")))


def test_index_is_that_of_the_checks() -> None:
    index = Path(gpudoctor_checks.__file__).with_name(catalogue.INDEX)
    assert index.read_bytes() == registry.build_index(), (
        "run `make index` and commit checks/gpudoctor_checks/index.json"
    )


def test_only_sets_that_take_one_of_the_facts_are_imported() -> None:
    code = (
        "import sys; from gpudoctor import registry;"
        "from gpudoctor.facts.nccl.model import NcclLog;"
        "from gpudoctor.report import Subject; loaded = registry.load();"
        "checks = loaded.checks_for([NcclLog(subject=Subject('Log', 'x'))]);"
        "assert checks and all(check.takes is NcclLog for check in checks), checks;"
        "assert 'gpudoctor_checks.devices' not in sys.modules; assert not loaded.broken"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_third_party_check_runs_and_its_failure_is_an_unknown(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = site / "acme_runbooks" / "ACM001-no-team-label.md"
    page.rename(page.with_name("WKL901-no-team-label.md"))
    folder = site / "acme_runbooks"
    (folder / catalogue.INDEX).write_bytes(catalogue.build_index(folder))
    distribution(site, "acme", "acme = acme_checks:CHECKS")
    loaded = registry.load()
    found = diagnosis.diagnose(loaded, [situation()])
    assert "no-team-label" in {each.name for each in found.findings}
    assert any("out of order" in each.why for each in found.unknown)
    assert loaded.catalogue.page(loaded.catalogue.get("WKL901")).startswith("# no-team-label")  # type: ignore[arg-type]


def test_third_party_checks_can_be_left_off(site: Path) -> None:
    page = site / "acme_runbooks" / "ACM001-no-team-label.md"
    page.rename(page.with_name("WKL901-no-team-label.md"))
    folder = site / "acme_runbooks"
    (folder / catalogue.INDEX).write_bytes(catalogue.build_index(folder))
    distribution(site, "acme", "acme = acme_checks:CHECKS")
    assert registry.load(third_party=()).catalogue.get("no-team-label") is None
    assert registry.load(third_party=("acme",)).catalogue.get("no-team-label") is not None


def test_what_cannot_be_loaded_is_an_unknown_and_ours_go_on(site: Path) -> None:
    distribution(site, "acme", "gone = acme_gone:CHECKS\nno-set = acme_checks:finding")
    loaded = registry.load()
    assert [each.what for each in loaded.broken] == ["checks gone", "checks no-set"]
    assert loaded.catalogue.get("shm-too-small") is not None


def test_a_code_that_exists_already_leaves_that_set_out(site: Path) -> None:
    page = site / "acme_runbooks" / "ACM001-no-team-label.md"
    page.rename(page.with_name("WKL001-no-team-label.md"))
    folder = site / "acme_runbooks"
    (folder / catalogue.INDEX).write_bytes(catalogue.build_index(folder))
    distribution(site, "acme", "acme = acme_checks:CHECKS")
    loaded = registry.load()
    assert ["WKL001-no-team-label exists twice" in each.why for each in loaded.broken] == [True]
    assert loaded.catalogue.get("no-team-label") is None
    assert loaded.catalogue.get("WKL001").name == "shm-too-small"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("no-code.md", PAGE, "not <CODE>-<name>.md"),
        ("ABC001-other.md", PAGE, "ABC"),
        ("WKL001-other.md", "# no front matter\n", "no front matter"),
        ("WKL001-other.md", PAGE.replace("warning", "mild"), "mild"),
        ("WKL001-other.md", PAGE.replace("title", "tilte"), "tilte"),
    ],
)
def test_a_wrong_page_says_what_is_wrong(tmp_path: Path, name: str, text: str, said: str) -> None:
    page = tmp_path / name
    page.write_text(text)
    with pytest.raises(catalogue.CatalogueError, match=said):
        catalogue.read_entry(page)


def test_a_missing_index_says_which_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bare_runbooks"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(catalogue.CatalogueError, match="bare_runbooks"):
        catalogue.Catalogue().load("bare_runbooks")


def start(code: str, *path: Path) -> None:
    """Run code in a process of its own, with these places where modules are looked for."""
    before = "".join(f"sys.path.append({str(place)!r});" for place in path)
    code = f"import sys; {before} from gpudoctor import registry; loaded = registry.load(); {code}"
    subprocess.run([sys.executable, "-c", code], check=True)


READS_ALL = "assert 'importlib.metadata' in sys.modules, sorted(sys.modules)"


def test_where_no_other_distribution_names_checks_no_metadata_is_read(tmp_path: Path) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[console_scripts]\nx = gpudoctor_other:main\n")
    (tmp_path / "bare-1.0.dist-info").mkdir()
    (tmp_path / "old-1.0.egg-info").write_text("Name: old\n")
    start("assert 'importlib.metadata' not in sys.modules", tmp_path, tmp_path / "none")


def test_other_checks_are_found_wherever_metadata_can_be(tmp_path: Path) -> None:
    distribution(tmp_path, "acme", "acme = acme_gone:CHECKS")
    start(f"{READS_ALL}; assert [b.what for b in loaded.broken] == ['checks acme']", tmp_path)


def test_beside_ours_under_our_own_name_they_are_found_too(tmp_path: Path) -> None:
    distribution(tmp_path, "mix", "devices = gpudoctor_checks.devices:CHECKS\nx = acme_gone:X")
    start(f"{READS_ALL}; assert [b.what for b in loaded.broken] == ['checks x']", tmp_path)


def test_an_archive_on_the_path_is_looked_into(tmp_path: Path) -> None:
    place = tmp_path / "acme.zip"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("acme-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme\n")
        points = f"[{registry.GROUP}]\nacme = acme_gone:CHECKS\n"
        archive.writestr("acme-1.0.dist-info/entry_points.txt", points)
    start("assert [b.what for b in loaded.broken] == ['checks acme']", place)


def test_a_finder_of_another_kind_is_asked() -> None:
    code = (
        "import importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_distributions(self, *_): return ()\n"
        "sys.modules.pop('importlib.metadata', None); sys.meta_path.append(Finder())\n"
        f"registry.load()\n{READS_ALL}"
    )
    start(f"exec({code!r})")
