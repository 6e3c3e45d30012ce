"""`gpudoctor topo`: drawn from text and bundles; hostile names do not reach the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gpudoctor import diagnosis
from gpudoctor.cli.topo import command
from gpudoctor.diagnosis import Diagnosis
from gpudoctor.facts.node import topology_text
from gpudoctor.facts.node.topology import MigPlace, Topology
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


@pytest.mark.parametrize("path", sorted(CASES.glob("topo-*.txt")), ids=lambda path: path.stem)
def test_every_machine_fits_80_columns(path: Path) -> None:
    """Each pair of GPU and NIC stands in the picture, and no line is broken by the terminal."""
    result = CliRunner().invoke(command, ["--from", str(path), "--no-color"])
    assert max(map(len, result.output.splitlines())) <= 80
    asked = CliRunner().invoke(command, ["--from", str(path), "-o", "json"])
    topology = json.loads(asked.output)["facts"]["topology"]
    drawn = cells(result.output)
    for gpu in topology["gpu_numa_id"]:
        for other in (*topology["gpu_numa_id"], *topology["nic_names"]):
            assert drawn[gpu, other] == topology["matrix"].get(gpu, {}).get(other, "?")


def cells(drawn: str) -> dict[tuple[str, str], str]:
    """Read the pictures of the matrix back: (row, column) -> cell."""
    found: dict[tuple[str, str], str] = {}
    for block in drawn.split("\n\n"):
        header, *rows = block.splitlines() or [""]
        if header.startswith("  "):
            for row in rows:
                label, *values = row.split()
                found |= {
                    (label, column): value
                    for column, value in zip(header.split(), values, strict=True)
                }
    return found


def test_eight_gpus_and_ten_nics_in_two_pictures() -> None:
    path = CASES / "topo-20-eight-gpus-without-nvlink-sys-inside-a-node.txt"
    lines = CliRunner().invoke(command, ["--from", str(path), "--no-color"]).output.splitlines()
    assert lines[0].split() == [f"GPU{number}" for number in range(8)]
    assert lines[8].split()[0] == "GPU7"
    assert lines[10].split() == [f"NIC{number}" for number in range(10)]
    assert "GPU7  mlx5_7     1     56-111,168-223" in lines


def test_gb200_whole_in_one_picture() -> None:
    path = CASES / "topo-02-gb200-container-empty-cpu-affinity.txt"
    lines = CliRunner().invoke(command, ["--from", str(path), "--no-color"]).output.splitlines()
    assert len(lines[0].split()) == 10
    assert "NVLink: GPU0 GPU1 GPU2 GPU3" in lines


def test_mig_devices_with_their_card() -> None:
    place = MigPlace(uuid="MIG-1", gpu="GPU0", profile="1g.10gb", gpu_instance=7)
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0\nGPU1\tNV12\t X \t0\n"
    parsed = topology_text.parse(text, Subject("Host", "test"))
    assert parsed is not None
    drawn = draw(msgspec.structs.replace(parsed, mig=(place,)), color=False)
    assert "MIG-1       1g.10gb  GPU0  7/?    GPU0 GPU1" in drawn.splitlines()


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
    drawn = draw(parsed, color=True)
    assert "\x1b[32mPIX" in drawn
    assert "NIC0=ab" in drawn
    assert "\x07" not in drawn
    assert "\u202e" not in drawn


def draw(topology: Topology, *, color: bool) -> str:
    report = diagnosis.report(
        Diagnosis(findings=(), root_ids=(), unknown=()),
        ReportSubject("Host"),
        observed_at=None,
        facts={"topology": topology.published()},
    )
    stream = io.StringIO()
    render.render(report, stream, color=color)
    return stream.getvalue()
