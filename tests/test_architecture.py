"""The house rules about who may import whom, read from the source itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "nodeagent"
CHECKS = ROOT / "checks"

# A module may import from its own rank or a lower one; the longest prefix counts.
RANK = {
    "gpudoctor": 0,
    "gpudoctor.errors": 0,
    "gpudoctor.report": 0,
    "gpudoctor.sources": 1,
    "gpudoctor.facts": 2,
    "gpudoctor.checking": 2,
    "gpudoctor.catalogue": 2,
    "gpudoctor_checks": 3,
    "gpudoctor.registry": 3,
    "gpudoctor.diagnosis": 4,
    "gpudoctor.across": 4,
    "gpudoctor.readings": 5,
    "gpudoctor.agent": 6,
    "gpudoctor.controller": 6,
    "gpudoctor.preflight": 6,
    "gpudoctor.cli": 7,
    "gpudoctor.__main__": 8,
}
ONLY_REPORT = ("gpudoctor.render", "gpudoctor.publish")
IMPURE = {
    "asyncio", "click", "ctypes", "glob", "io", "os", "pathlib", "psutil", "pynvml",
    "pyudev", "random", "requests", "shutil", "signal", "socket", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib",
}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    for base in (PROGRAM, CHECKS):
        for path in sorted(base.rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rank(module: str) -> int | None:
    while module:
        if module in RANK:
            return RANK[module]
        module = module.rpartition(".")[0]
    return None


ALL = list(modules())


@pytest.mark.parametrize(("module", "path"), ALL, ids=[name for name, _ in ALL])
def test_imports_run_one_way(module: str, path: Path) -> None:
    ours = [name for name in imports(path) if name.split(".")[0].startswith("gpudoctor")]
    if module.startswith(ONLY_REPORT):
        allowed = ("gpudoctor.report", "gpudoctor.render", "gpudoctor.publish")
        package = ("gpudoctor", "gpudoctor.PREFIX", "gpudoctor.__version__")
        bad = [name for name in ours if name not in package and not name.startswith(allowed)]
    else:
        own = rank(module)
        assert own is not None, f"{module} has no rank: give it one here"
        bad = [
            name
            for name in ours
            if not name.startswith(ONLY_REPORT) and (rank(name) or 0) > own
        ]  # fmt: skip
    assert bad == []


@pytest.mark.parametrize(
    ("module", "path"),
    [entry for entry in ALL if entry[0].startswith("gpudoctor_checks")],
    ids=[name for name, _ in ALL if name.startswith("gpudoctor_checks")],
)
def test_checks_are_pure(module: str, path: Path) -> None:
    assert {name.split(".")[0] for name in imports(path)} & IMPURE == set(), module
    # A duration is arithmetic; what the time is now comes in with the facts.
    assert not {"datetime.datetime", "datetime.date"} & set(imports(path)), module
    calls = [
        node.func.id
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert not {"open", "input", "print", "exec", "eval", "__import__"} & set(calls), module


def test_every_package_is_installed() -> None:
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {
        ".".join(path.parent.relative_to(base).parts)
        for base in (PROGRAM, CHECKS)
        for path in base.rglob("__init__.py")
    }
    assert packages | {"gpudoctor_runbooks"} == set(listed)
