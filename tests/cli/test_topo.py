"""`gpudoctor topo`: drawn from text and bundles; hostile names do not reach the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

from click.testing import CliRunner

from gpudoctor import diagnosis
from gpudoctor.cli.topo import command
from gpudoctor.diagnosis import Diagnosis
from gpudoctor.facts.node import topology_text
from gpudoctor.render import topology as render
from gpudoctor.report import ReportSubject, Subject

CASES = Path(__file__).parent.parent / "cases" / "node"


def test_draws_a_text() -> None:
    path = CASES / "topo-07-l40s-4gpu-nic-on-other-socket.txt"
    result = CliRunner().invoke(command, ["--from", str(path), "--no-color"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"]
    assert lines[1].split() == ["GPU0", "X", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert "GPU2  -          1     96-191,288-383" in lines
    assert "NVLink: none" in lines
    assert any("TOP006" in line for line in lines)


def test_draws_a_bundle_without_gpus_as_unknown(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.json"
    bundle.write_text(json.dumps({"schema": "gpudoctor.io/bundle/v1", "hosts": {"local": {}}}))
    result = CliRunner().invoke(command, ["--from", str(bundle)])
    assert result.exit_code == 3
    assert "No GPU is known here." in result.output


def test_names_from_outside_are_cleaned_and_colours_kept() -> None:
    text = "\tGPU0\tNIC0\tCPU Affinity\nGPU0\t X \tPIX\t0\n\nNIC Legend:\n  NIC0: a\x07\u202eb\n"
    parsed = topology_text.parse(text, Subject("Host", "test"))
    assert parsed is not None
    report = diagnosis.report(
        Diagnosis(findings=(), root_ids=(), unknown=()),
        ReportSubject("Host"),
        observed_at=None,
        facts={"topology": parsed.published()},
    )
    stream = io.StringIO()
    render.render(report, stream, color=True)
    drawn = stream.getvalue()
    assert "\x1b[32mPIX" in drawn
    assert "NIC0 ab" in drawn
    assert "\x07" not in drawn
    assert "\u202e" not in drawn
