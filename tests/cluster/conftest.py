"""One control plane a test run, of the line that KUBERNETES_LINE names (default: the newest)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import parts
from tests.cluster.admin import Admin
from tests.cluster.control_plane import ControlPlane, running


@pytest.fixture(scope="session")
def line() -> str:
    return os.environ.get("KUBERNETES_LINE") or parts.lines()[0]


@pytest.fixture(scope="session")
def programs(line: str) -> Path:
    try:
        return parts.programs(line)
    except parts.NoGoError as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error}: CI has to run these tests", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def control_plane(
    programs: Path, line: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    with running(programs, tmp_path_factory.mktemp("control-plane"), line) as started:
        yield started


@pytest.fixture(scope="session")
def admin(control_plane: ControlPlane) -> Iterator[Admin]:
    administrator = Admin(control_plane)
    yield administrator
    administrator.close()
