"""Compiles a libnvidia-ml.so.1 that answers by a script, for tests that run without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

from tests import parts

_SOURCE = Path(__file__).parent / "data" / "fake_nvml.c"


def build(folder: Path, script: str = "", *defines: str) -> str:
    """Compile the library for a script (see data/fake_nvml.c) and return its path."""
    compiler = parts.program("gcc", "gcc")
    parts.module("nvidia")
    headers = importlib.util.find_spec("nvidia")
    target = folder / "libnvidia-ml.so.1"
    locations = (headers.submodule_search_locations if headers else None) or ()
    includes = [f"-I{location}/cu13/include" for location in locations]
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", *includes, "-Wno-deprecated-declarations",
         "-Wl,-soname,libnvidia-ml.so.1", f'-DSCRIPT="{script}"', *defines,
         "-o", str(target), str(_SOURCE)],
        check=True,
    )  # fmt: skip
    return str(target)
