"""Real parts that some tests need: where one is missing a test is skipped, and fails in CI.

CI is any run with `CI=true` in its environment; `.ci/packages` lists what it installs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def missing(part: str) -> NoReturn:
    """Skip the test with the one line `needs PART`; in CI, where all parts must be, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must have it: needs {part}", pytrace=False)
    pytest.skip(f"needs {part}")


def program(name: str, package: str) -> str:
    """Return the path of a program of a Debian package."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} (Debian: {package})")
    return found


def module(name: str) -> None:
    """Require an importable module."""
    if importlib.util.find_spec(name) is None:
        missing(f"the Python module {name}")
