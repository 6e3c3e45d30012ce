"""The flight recorder's tool: who did not join, in the forms of its versions, amid other lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts import nccl
from gpudoctor.facts.nccl.flight import BEGIN, Reader
from gpudoctor.facts.nccl.model import Line

FORMS = {
    "2.5": "Not all ranks joining collective for group 0:default_pg collective nccl:all_reduce "
    "Missing ranks are {1, 5} \n",
    "2.6": "Not all ranks joining collective 5 at entry 4\ngroup info: 0:default_pg\n"
    "collective: nccl:all_reduce\nmissing ranks: {1, 5}\ninput sizes: [[3, 4]]\n"
    "expected ranks: 8\ncollective state: scheduled\n",
    "2.9": "INFO:root:Not all ranks joining collective, sequence number: 5\n"
    "INFO:root:internal record id: 4\nINFO:root:group info: 0:default_pg\n"
    "INFO:root:collective: nccl:all_reduce\nINFO:root:missing ranks: {1, 5}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    log = nccl.parse([("one\n" + FORMS[form] + "two\n").encode()], "fr.txt")
    (gap,) = log.flight
    assert (gap.group, gap.collective, gap.missing) == ("0:default_pg", "all_reduce", (1, 5))
    assert gap.sequence == (None if form == "2.5" else 5)
    assert "issing ranks" in gap.line.text


def test_amid_lines_of_nccl_and_cut_anywhere() -> None:
    lines = "node-1:7:8 [0] NCCL INFO Using network IB\n" * 40
    text = (lines + FORMS["2.6"] + lines + FORMS["2.6"]).encode()
    whole = nccl.parse([text], "log").flight
    assert [gap.line.number for gap in whole] == [44]
    for cut in range(0, len(text), 97):
        assert nccl.parse([text[:cut], text[cut:]], "log").flight == whole


def test_an_output_without_its_end_says_nothing() -> None:
    assert nccl.parse([b"Not all ranks joining collective 5 at entry 4\n" * 3], "log").flight == ()
    assert nccl.parse([b"missing ranks: {1}\n"], "log").flight == ()


@given(st.lists(st.binary(max_size=60) | st.just(BEGIN) | st.just(b"missing ranks: {3}")))
def test_reads_anything(lines: list[bytes]) -> None:
    reader = Reader()
    for number, line in enumerate(lines, 1):
        reader.read(line, Line("log", number, ""))
    assert all(gap.missing for gap in reader.gaps())
