"""Every recognised error becomes its finding, with a page behind it."""

from __future__ import annotations

import pytest

from gpudoctor import diagnosis, registry
from gpudoctor.catalogue import placeholders
from gpudoctor.checking import Draft
from gpudoctor.facts.node.runtime_error_lines import recognise
from gpudoctor.facts.node.runtime_error_texts import NAMES
from gpudoctor.facts.node.runtime_errors import ErrorLines, RecognisedError
from gpudoctor.report import Evidence, Severity, Subject
from gpudoctor_checks.runtime_errors import named_by_its_error

LOG = Subject("Log", "x")
# Names that appear in no other test: "driver-not-usable", "cuda-unknown-error", "gpu-busy",
# "device-ordinal-invalid", "driver-libs-not-injected", "host-driver-libs-missing".


def roots(*texts: str) -> tuple[str, ...]:
    errors = []
    for number, text in enumerate(texts):
        found = recognise(text)
        assert found is not None
        errors.append((found, Evidence(f"log:{number}", value=text)))
    return found_by(ErrorLines(subject=LOG, errors=tuple(errors)))


def found_by(lines: ErrorLines) -> tuple[str, ...]:
    found = diagnosis.diagnose(registry.load(), [lines])
    assert not found.unknown
    names = {finding.id: finding.name for finding in found.findings}
    return tuple(names[root] for root in found.root_ids)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_finding_without_open_placeholders(name: str) -> None:
    error = RecognisedError(name, "the line")
    lines = ErrorLines(subject=LOG, errors=((error, Evidence("log:1")),))
    found = diagnosis.diagnose(registry.load(), [lines])
    (finding,) = found.findings
    assert finding.name == name
    assert not found.unknown
    assert finding.severity.rank >= Severity.WARNING.rank
    (draft,) = named_by_its_error(lines)
    assert isinstance(draft, Draft)
    entry = registry.load().catalogue.get(name)
    assert entry is not None
    templates = [entry.title, *filter(None, (entry.fixes.user, entry.fixes.admin))]
    assert set().union(*map(placeholders, templates)) <= set(draft.values)


def test_no_lines_no_findings() -> None:
    assert found_by(ErrorLines(subject=LOG, errors=())) == ()


def test_a_cause_explains_its_consequences_in_the_same_text() -> None:
    mismatch = "Failed to initialize NVML: Driver/library version mismatch"
    assert roots(mismatch, "Error 803: system has unsupported display driver") == (
        "driver-library-mismatch",
    )
    assert roots(
        "fabric manager NVIDIA GPU driver interface version 1 don't match with driver version 2",
        "Error 802: system not yet initialized",
    ) == ("fabric-manager-version-mismatch",)
    assert roots(
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "RuntimeError: No CUDA GPUs are available",
    ) == ("module-signature-rejected",)
    insufficient = "CUDA driver version is insufficient for CUDA runtime version"
    assert roots(insufficient) == ("driver-too-old",)
    assert roots("WARNING: The NVIDIA Driver was not detected.", insufficient) == (
        "driver-libs-not-injected",
    )
    assert roots("Error 803: x", "inotify_init1: too many open files") == (
        "libcuda-kernel-mismatch",
        "inotify-limit",
    )
