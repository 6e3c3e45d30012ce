"""Cutting a log into whole lines, however it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.nccl import parse
from gpudoctor.facts.nccl.lines import LARGEST, Lines
from gpudoctor.facts.nccl.records import LONGEST

NEAR = [LONGEST - 1, LONGEST, LONGEST + 1, LARGEST - 1, LARGEST, LARGEST + 1, 2 * LARGEST]
LINES = st.lists(
    st.one_of(
        st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
        st.sampled_from(NEAR).map(lambda size: b"x" * size),
    ),
    max_size=6,
)


def cut(chunks: list[bytes]) -> list[bytes]:
    """The lines as they come out, the rest at last."""
    lines = Lines()
    found: list[bytes] = []
    for chunk in chunks:
        for data, start, stop in lines.take(chunk):
            assert 0 < stop - start <= LARGEST
            assert data[stop - 1 : stop] == b"\n"
            found += data[start : stop - 1].split(b"\n")
    return [*found, lines.end()]


@given(LINES, st.lists(st.integers(1, 2 * LARGEST), max_size=5))
def test_no_line_is_lost_and_only_the_longest_are_cut(lines: list[bytes], sizes: list[int]) -> None:
    raw = b"\n".join(lines)
    chunks = []
    for size in sizes:
        chunks.append(raw[:size])
        raw = raw[size:]
    found = cut([*chunks, raw])
    assert [line[:LONGEST] for line in found] == [line[:LONGEST] for line in lines or [b""]]


def test_what_is_left_of_one_source_is_not_put_before_the_next() -> None:
    lines = Lines()
    assert not list(lines.take(b"y" * 3 * LARGEST))
    assert lines.end() == b"y" * LONGEST
    assert [part.data for part in lines.take(b"a\n")] == [b"a\n"]


def test_a_line_longer_than_any_piece_ends_nothing() -> None:
    said = b"node-a:1:2 [0] NCCL INFO Using network IB\n"
    for size in (LONGEST - 5, LARGEST - 5, 3 * LARGEST):
        chunks = [said + b"x" * size, b"NCCL " + b"y" * size + b"\n", said]
        assert parse(chunks).lines == 3


def test_what_is_worth_reading_without_the_name_is_read_wherever_the_log_is_cut() -> None:
    raw = (
        b"node-a:1:2 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
        b"torch.distributed.DistBackendError: unhandled system error\nLast error:\n"
        b"Bootstrap : no socket interface found\n"
    )
    whole = parse([raw])
    assert [event.kind for event in whole.events] == ["ifname"]
    for at in range(len(raw)):
        assert parse([raw[:at], raw[at:]]) == whole
