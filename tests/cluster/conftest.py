"""One control plane a test module, of the line that KUBERNETES_LINE names (default: the newest)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import parts
from tests.cluster.admin import Admin
from tests.cluster.answers import Answers, table
from tests.cluster.control_plane import ControlPlane, running

NO_GO = pytest.StashKey[str]()
ANSWERS = pytest.StashKey[Answers]()
KEPT = "gpudoctor/answers/{}"


@pytest.fixture(scope="session")
def line() -> str:
    return os.environ.get("KUBERNETES_LINE") or parts.lines()[0]


@pytest.fixture(scope="session")
def programs(line: str, pytestconfig: pytest.Config) -> Path:
    try:
        return parts.programs(line)
    except parts.NoGoError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error}: CI has to run these tests", pytrace=False)
        pytestconfig.stash[NO_GO] = str(error)
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def control_plane(
    programs: Path, line: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A cluster of the module's own: what one leaves behind is no other's affair."""
    with running(programs, tmp_path_factory.mktemp("control-plane"), line) as started:
        yield started


@pytest.fixture(scope="module")
def admin(control_plane: ControlPlane) -> Iterator[Admin]:
    administrator = Admin(control_plane)
    yield administrator
    administrator.close()


@pytest.fixture(scope="module")
def own_namespace(admin: Admin) -> str:
    """gpudoctor's own namespace, where its policies' parameters lie."""
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpudoctor"}})
    return "gpudoctor"


@pytest.fixture(scope="session")
def answers(line: str, pytestconfig: pytest.Config) -> Answers:
    noted = pytestconfig.stash[ANSWERS] = Answers(line)
    return noted


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    reason = config.stash.get(NO_GO, None)
    if reason is not None:
        terminalreporter.write_line(f"SKIPPED all tests of the cluster: {reason}")
    noted = config.stash.get(ANSWERS, None)
    if noted is None or config.cache is None:
        return
    noted.record()
    config.cache.set(KEPT.format(noted.line), noted.given)
    kept = {line: config.cache.get(KEPT.format(line), None) for line in parts.lines()}
    terminalreporter.section("situations and answers")
    for row in table({line: given for line, given in kept.items() if given}):
        terminalreporter.line(row)
