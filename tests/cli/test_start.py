"""What a start imports: each library and rule module that an answer does not need is time lost.

The times themselves are in `bench/startup.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "samples"
_PROGRAM = """
import json, sys
before = set(sys.modules)
sys.argv = ["gpudoctor", *sys.argv[1:]]
from gpudoctor.__main__ import start
try:
    start()
except SystemExit:
    pass
sys.stdout.flush()
print(json.dumps(sorted(set(sys.modules) - before)), file=sys.stderr)
"""
# What one run of a pod's check has no use for: the whole of it is imported where it is needed.
NO_ANSWER_NEEDS = {
    "bz2", "csv", "difflib", "email", "gzip", "http", "importlib.metadata", "importlib.resources",
    "jinja2", "json", "lzma", "numpy", "psutil", "pynvml", "pyudev", "random", "requests", "rich",
    "shutil", "socket", "ssl", "statistics", "subprocess", "tempfile", "tomllib", "urllib3", "yaml",
    "zipfile",
}  # fmt: skip
OF_OTHER_INPUTS = {
    "gpudoctor.facts.kubernetes.gangs", "gpudoctor.facts.kubernetes.kueue_message",
    "gpudoctor.facts.kubernetes.labels", "gpudoctor.facts.node.pci",
    "gpudoctor.readings.host", "gpudoctor.readings.joined", "gpudoctor.sources.kubernetes",
    "gpudoctor_checks.compatibility", "gpudoctor_checks.network", "gpudoctor_checks.topology",
}  # fmt: skip


def imported(*arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments], capture_output=True, check=True, text=True
    )
    assert done.stdout
    loaded = json.loads(done.stderr.splitlines()[-1])
    assert "gpudoctor.cli" in loaded
    return set(loaded)


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_what_only_prints_imports_the_command_line_alone(option: str) -> None:
    loaded = imported(option)
    assert "msgspec" not in loaded
    assert {name for name in loaded if name.startswith("gpudoctor")} == {
        "gpudoctor", "gpudoctor.__main__", "gpudoctor.cli", "gpudoctor.cli.pipe",
        "gpudoctor.errors",
    }  # fmt: skip


@pytest.mark.parametrize("sample", ["trainer-without-rdma", "healthy-trainer"])
def test_a_pods_check_imports_nothing_that_its_input_does_not_need(sample: str) -> None:
    loaded = imported("check", "--pod", "trainer-0", "--from", str(SAMPLES / f"{sample}.json"))
    assert loaded & NO_ANSWER_NEEDS == set()
    assert loaded & OF_OTHER_INPUTS == set()
