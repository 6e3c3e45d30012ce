"""Builds the image: `python -m daemonset.image MACHINE NAME`, as `make image`.

BUILDER is the command that builds (default `buildah`), BASE another base image than the
Containerfile's. The time of everything in the image is SOURCE_DATE_EPOCH, or that of the commit.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from daemonset import lock

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
CONTEXT = CHECKOUT / "build" / "image"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def epoch() -> str:
    """Seconds since the epoch that all files of the image are dated with."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "-C", str(CHECKOUT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def prepare(context: Path, machine: str) -> None:
    """Fill the folder with all that the Containerfile copies, for a machine of that kind."""
    shutil.rmtree(context, ignore_errors=True)
    wheels = context / "wheels"
    wheels.mkdir(parents=True)
    _project_wheel(wheels)
    exact = ["--require-hashes", "--no-deps", *lock.platforms(machine)]
    _pip("download", *exact, f"--dest={wheels}", f"--requirement={lock.REQUIREMENTS}")
    _pip("download", *exact, f"--dest={context}", f"--requirement={lock.INSTALLER}")
    [installer] = context.glob("pip-*.whl")
    installer.rename(context / "pip.whl")
    shutil.copy(lock.REQUIREMENTS, context)


def build(context: Path, name: str, builder: Sequence[str], options: Sequence[str]) -> None:
    """Build the image of a prepared folder; CalledProcessError where that fails."""
    command = [*builder, "build", f"--timestamp={epoch()}", f"--tag={name}", *options]
    subprocess.run([*command, f"--file={HERE / 'Containerfile'}", str(context)], check=True)


def _project_wheel(wheels: Path) -> None:
    # What an earlier build left there would go into the wheel.
    for left in (CHECKOUT / "build" / "lib", CHECKOUT / "build" / "bdist.linux-x86_64"):
        shutil.rmtree(left, ignore_errors=True)
    constraint = f"--build-constraint={CHECKOUT / 'constraints.txt'}"
    # For any machine, and without what only large NCCL logs need.
    pure = {"GPUDOCTOR_NO_EXTENSIONS": "1"}
    _pip("wheel", "--no-deps", constraint, f"--wheel-dir={wheels}", str(CHECKOUT), **pure)


def _pip(*arguments: str, **variables: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        env=os.environ | {"SOURCE_DATE_EPOCH": epoch()} | variables,
        check=True,
    )


def main() -> None:
    """Prepare and build as the arguments and the environment say."""
    machine, name = sys.argv[1:]
    prepare(CONTEXT, machine)
    base = os.environ.get("BASE")
    options = [f"--arch={_ARCHITECTURES[machine]}", *([f"--build-arg=BASE={base}"] if base else [])]
    build(CONTEXT, name, shlex.split(os.environ.get("BUILDER") or "buildah"), options)


if __name__ == "__main__":
    main()
