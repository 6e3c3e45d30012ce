"""Labels by Node Feature Discovery's feature file: the node itself is never written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpudoctor.agent.clock import ServerClock
from gpudoctor.agent.feature_file import FeatureFile
from gpudoctor.agent.publisher import Publisher
from gpudoctor.publish import nfd
from tests.agent.small_cluster import NODE, SmallCluster
from tests.agent.test_publisher import Life, report
from tests.kubernetes_objects import node
from tests.publish.test_nfd import labels_of_nfd

WELL = {"gpudoctor.io/driver": "580126009", "gpudoctor.io/verdict": "healthy"}


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return begin(tmp_path)


def begin(folder: Path, period_s: float = 60) -> Life:
    """An agent that starts with --nfd."""
    life = Life(SmallCluster(node(NODE)))
    file = FeatureFile(folder, period_s, life.said.append)
    life.publisher = Publisher(
        NODE, "gpudoctor", period_s, life.outbox, ServerClock(), lambda: None, file
    )
    return life


def features(folder: Path) -> dict[str, str]:
    """What NFD makes of the file now; it does not look at hidden ones."""
    names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    assert names == [nfd.FILE]
    return labels_of_nfd((folder / nfd.FILE).read_text(), datetime.now(UTC))


def test_labels_are_in_the_file_and_nothing_is_written_to_the_node(
    life: Life, tmp_path: Path
) -> None:
    written = life.see(report(), report(), report("gpu-lost"), report("gpu-lost"))
    assert features(tmp_path) == WELL | {"gpudoctor.io/verdict": "failing"}
    assert [write for write in written if "/nodes/" in write] == []
    assert any("/diagnoses/" in write for write in written)


def test_what_can_no_longer_be_told_leaves_the_file_at_once(life: Life, tmp_path: Path) -> None:
    life.see(report(), report())
    life.see(report(unknown="timed out", labels={}))
    assert features(tmp_path) == {}


def test_the_next_agent_goes_on_with_what_it_finds(life: Life, tmp_path: Path) -> None:
    life.see(report(), report())
    begin(tmp_path).see(report())
    assert features(tmp_path) == WELL
    begin(tmp_path).see(report("gpu-lost"))
    assert features(tmp_path) == {"gpudoctor.io/driver": "580126009"}


def test_what_has_expired_is_not_gone_on_with(tmp_path: Path) -> None:
    file = FeatureFile(tmp_path, 60, lambda _: None)
    file.write(WELL)
    assert file.read() == WELL
    FeatureFile(tmp_path, -60, lambda _: None).write(WELL)
    assert file.read() == {}


def test_a_folder_that_went_away_is_said_once_and_stops_nothing(life: Life, tmp_path: Path) -> None:
    life.see(report(), report())
    (tmp_path / nfd.FILE).unlink()
    tmp_path.rmdir()
    assert life.see(report(), report()) == []
    assert len(life.said) == 1
    assert f"{tmp_path}/gpudoctor cannot be written" in life.said[0]


def test_a_link_in_the_place_of_the_draft_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    folder = tmp_path / "features.d"
    folder.mkdir()
    (folder / f".{nfd.FILE}").symlink_to(target)
    said: list[str] = []
    FeatureFile(folder, 60, said.append).write(WELL)
    assert target.read_text() == "kept"
    assert len(said) == 1


def test_the_file_of_this_life_is_readable_for_nfd_whoever_it_runs_as(tmp_path: Path) -> None:
    FeatureFile(tmp_path, 60, lambda _: None).write(WELL)
    assert (tmp_path / nfd.FILE).stat().st_mode & 0o444 == 0o444
