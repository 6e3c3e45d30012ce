"""Compiles a libnvidia-ml.so.1 that answers by a script, for tests that run without a GPU."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

_SOURCE = Path(__file__).parent / "data" / "fake_nvml.c"
_COMPILER = shutil.which("cc") or shutil.which("gcc")
_HEADERS = importlib.util.find_spec("nvidia")

NEEDED = [
    pytest.mark.skipif(_COMPILER is None, reason="no C compiler"),
    pytest.mark.skipif(_HEADERS is None, reason="nvidia-nvml-dev is not installed"),
]
"""Marks of a test that compiles the library."""


def build(folder: Path, script: str = "", *defines: str) -> str:
    """Compile the library for a script (see data/fake_nvml.c) and return its path."""
    assert _COMPILER is not None
    assert _HEADERS is not None
    target = folder / "libnvidia-ml.so.1"
    locations = _HEADERS.submodule_search_locations or ()
    includes = [f"-I{location}/cu13/include" for location in locations]
    subprocess.run(
        [_COMPILER, "-O1", "-shared", "-fPIC", *includes, "-Wno-deprecated-declarations",
         "-Wl,-soname,libnvidia-ml.so.1", f'-DSCRIPT="{script}"', *defines,
         "-o", str(target), str(_SOURCE)],
        check=True,
    )  # fmt: skip
    return str(target)
