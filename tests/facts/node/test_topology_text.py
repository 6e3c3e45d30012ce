"""The parser of `nvidia-smi topo -m`: formats of drivers from 2018 to now, and damage."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.node import topology_text
from gpudoctor.facts.node.topology import Topology, distance, nvlinks
from gpudoctor.report import Subject

HOST = Subject("Host", "test")
TABLE = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\t0-3,8-11\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\t\t1\t\t2\n"
    "NIC0\tPIX\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_7\n"
)


def read(text: str) -> Topology:
    topology = topology_text.parse(text, HOST)
    assert topology is not None
    return topology


def test_reads_the_current_format() -> None:
    topology = read(TABLE)
    assert [gpu.label for gpu in topology.gpus] == ["GPU0", "GPU1"]
    assert topology.matrix["GPU0"] == {"GPU0": "X", "GPU1": "NV18", "NIC0": "PIX"}
    assert topology.near_nics(topology.gpus[0]) == ("mlx5_7",)
    assert topology.gpus[0].cpus == frozenset({0, 1, 2, 3, 8, 9, 10, 11})
    assert topology.gpus[1].cpus == frozenset(), "an empty cell is no CPU, not a shifted column"
    assert topology.gpus[1].numa == (1,)
    assert topology.gpus[1].memory_node == 2
    assert topology.gpus[0].memory_node is None
    assert topology.nvlink_shown
    assert topology.broken == ()


def test_old_driver_names_nics_in_the_header_and_says_soc() -> None:
    topology = read(
        "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\n"
        "GPU0\t X \tSOC\tPHB\t0-7\nGPU1\tSOC\t X \tSOC\t8-15\nmlx5_0\tPHB\tSOC\t X \t\n"
    )
    assert topology.matrix["GPU0"]["GPU1"] == "SYS"
    assert topology.nics[0].device == "mlx5_0"
    assert not topology.numa_shown
    assert not topology.nvlink_shown


def test_tabs_turned_into_blanks_with_an_empty_affinity() -> None:
    pasted = read(TABLE.expandtabs(8))
    assert pasted.matrix == read(TABLE).matrix
    assert pasted.gpus[1].numa == (1,)
    assert pasted.gpus[1].cpus == frozenset()
    assert pasted.gpus[1].memory_node == 2


def test_windows_line_ends_and_text_around_the_table() -> None:
    text = "$ nvidia-smi topo -m\r\n" + TABLE.replace("\n", "\r\n") + "\r\nroot@node:~# \r\n"
    assert read(text).matrix == read(TABLE).matrix


def test_cut_list_of_an_interleaved_machine_is_not_the_set_of_cpus() -> None:
    topology = read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0,2,4,6,8,10\t0\n")
    assert topology.gpus[0].cpus_cut


def test_numa_list_of_grace() -> None:
    topology = read("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-71\t0,3-5\n")
    assert topology.gpus[0].numa == (0, 3, 4, 5)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("GPU1    NV18     X      NODENODE  0-3  0  N/A", "'NODENODE' is not a path"),
        ("GPU1    NV18     X", "2 of 3 cells"),
        ("GPU1     X      NV18    SYS     0-3  0  N/A", "shifted"),
    ],
)
def test_a_damaged_row_is_left_out_not_guessed(row: str, why: str) -> None:
    lines = TABLE.expandtabs(8).splitlines()
    lines[2] = row
    topology = read("\n".join(lines))
    assert [broken.label for broken in topology.broken] == ["GPU1"]
    assert why in topology.broken[0].why
    assert "GPU1" not in topology.matrix
    assert topology.path("GPU1", "GPU0") == "NV18", "the other half of the matrix still says it"


def test_missing_gpu_row_is_reported() -> None:
    lines = TABLE.splitlines()
    del lines[2]
    assert [row.label for row in read("\n".join(lines)).broken] == ["GPU1"]


@pytest.mark.parametrize("text", ["", "GPU0", "GPU0 is broken\n", "GPU 0: H100\n", "\x1b[4m\n"])
def test_other_text_is_no_table(text: str) -> None:
    assert topology_text.parse(text, HOST) is None or text == "GPU0"
    assert topology_text.rows_seen(text) == 0


LABEL = st.sampled_from(["GPU0", "GPU1", "GPU2", "NIC0", "NIC1", "mlx5_0", "CPU Affinity", "X"])
CELL = st.sampled_from(["X", "NV18", "PIX", "SYS", "NODENODE", "0-3", "0", "N/A", "", "\x1b[0m"])
LINE = st.lists(LABEL | CELL, max_size=8).flatmap(
    lambda words: st.sampled_from(["\t", "    ", " "]).map(lambda sep: sep.join(words))
)


@settings(deadline=None, max_examples=200)
@given(st.lists(LINE | st.text(string.printable, max_size=60), max_size=12))
def test_never_raises_and_never_invents_a_path(lines: list[str]) -> None:
    topology = topology_text.parse("\n".join(lines), HOST)
    if topology is None:
        return
    for label, row in topology.matrix.items():
        assert row[label] == "X"
        for other, path in row.items():
            if other != label:
                assert nvlinks(path) or distance(path) > 0
    topology.published()


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 16), st.integers(0, 18), st.booleans(), st.data())
def test_a_printed_table_is_read_back(
    gpus: int, nics: int, blanks: bool, data: st.DataObject
) -> None:
    labels = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]
    path = st.sampled_from(["NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"])
    cells = {
        one: {other: " X " if one == other else data.draw(path) for other in labels}
        for one in labels
    }
    lines = ["\t" + "\t".join([*labels, "CPU Affinity", "NUMA Affinity"])]
    lines += ["\t".join([one, *cells[one].values(), "0-3", "0"]) for one in labels]
    text = "\n".join(lines)
    topology = read(text.expandtabs(8) if blanks else text)
    assert topology.broken == ()
    assert {one: {o: c.strip() for o, c in row.items()} for one, row in cells.items()} == (
        topology.matrix
    )
