"""The compiled sieve keeps what it is to keep, and stays inside what it is given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudoctor.facts.nccl import sieve as sieves
from gpudoctor.facts.nccl.lines import Part
from tests import parts

if TYPE_CHECKING:
    from gpudoctor.facts.nccl._sieve import Sieve

SOURCE = Path(sieves.__file__).with_name("_sieve.c")
HEADERS = Path(sysconfig.get_path("include"), "Python.h")
USUAL = re.compile(rb"(.*):\d+( [^ ]*\]) NCCL INFO Channel \d\d(\D.*)", re.DOTALL)
MARK = b"NCCL INFO "
WORDS, DULL = (b"NCCL", b"no socket interface"), (b"Trees [0", b"P2P Chun")
LINE = b"node-7:40:41 [0] NCCL INFO Channel 07/0 : 0[0] -> 1[0] via NET/IB/0"
FRAGMENTS = st.sampled_from(
    (
        b"node-7:40", b":41", b":x", b" [0]", b" [12]", b" ", b"]", MARK, b" " + MARK,
        b"Channel 07", b"Channel 131", b"Channel 0", b"/0 : 0[0] -> 1[0] via NET/IB/0", b"Trees [0",
        b"P2P Chunks", b"P2P", b"NCCL", b"no socket interface found",
        b"10:00:01 ", b"\r", b"step 5",
    )
)  # fmt: skip
LINES = st.lists(
    st.one_of(
        st.lists(FRAGMENTS, max_size=8).map(b"".join),
        st.builds(
            b"%s%s:40:4%d [%d] NCCL INFO Channel %02d%s".__mod__,
            st.tuples(
                st.sampled_from((b"", b"10:01 ", b"10:02 ")),
                st.sampled_from((b"a", b"node-7")),
                st.integers(0, 3),
                st.integers(0, 12),
                st.integers(0, 120),
                st.sampled_from((b"", b" : 0[0] -> 1[0] via SHM", b"/0 : 0 1 2", b"\r")),
            ),
        ),
        st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")),
    ),
    max_size=30,
)


def native() -> Sieve:
    """A new sieve; where it cannot be built the test is skipped."""
    made = sieves.sieve(WORDS, DULL)
    if made is None:
        parts.program("cc", "gcc")
        if not HEADERS.is_file():
            pytest.skip(f"needs {HEADERS}")
        pytest.fail(f"{SOURCE.name} is not built: make clean, then make test", pytrace=False)
    return made


def likeness(line: bytes, *, prefixed: bool) -> tuple[bytes, ...] | None:
    """What lines have in common that are alike, None where the line has not the usual form."""
    mark = line.find(MARK)
    match = USUAL.fullmatch(line)
    if match is None or match.start(2) + len(match[2]) + 1 != mark:
        return None
    name = match[1]
    return name[name.rfind(b" ") + 1 :] if prefixed else name, match[2], match[3]


def is_other(line: bytes) -> bool:
    """Whether a line that is like no other is worth reading."""
    _, mark, text = line.partition(MARK)
    if not mark:
        return any(word in line for word in WORDS)
    return text[:8] not in DULL or b"NCCL" in text


@given(LINES, st.booleans(), st.integers(0, 30))
def test_the_first_of_those_alike_and_others_that_say_something(
    lines: list[bytes], prefixed: bool, before: int
) -> None:
    sieve = native()
    start = b"".join(line + b"\n" for line in lines[:before])
    part = b"".join(line + b"\n" for line in lines[before:])
    _, rows = sieve.sift(start, 0, len(start), prefixed)
    sieve.learn(row[2] for row in rows if row[2])
    count, rows = sieve.sift(b"x\n" + part + b"rest", 2, 2 + len(part), prefixed)
    assert count == len(lines[before:])
    seen = {likeness(line, prefixed=prefixed) for line in lines[:before]}
    expected = []
    for number, line in enumerate(lines[before:]):
        like = likeness(line, prefixed=prefixed)
        if is_other(line) if like is None else like not in seen:
            expected.append((number, line, like is not None))
        seen.add(like)
    assert expected == [(number, line, bool(its_hash)) for number, line, its_hash in rows]


@given(LINES, st.booleans(), st.integers(-1, 30))
def test_alike_are_those_with_the_same_hash(lines: list[bytes], prefixed: bool, after: int) -> None:
    sieve = native()
    part = b"".join(line + b"\n" for line in lines)
    _, rows = sieve.sift(part, 0, len(part), prefixed)
    likes = [likeness(line, prefixed=prefixed) for line in lines]
    for number, _, its_hash in rows:
        if its_hash:
            found = [row[0] for row in sieve.alike(its_hash, after)]
            assert found == [
                n for n, like in enumerate(likes) if like == likes[number] and n > after
            ]


@pytest.mark.parametrize(
    "line",
    [
        b"node-7:40:41 [0 NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"node-7:40:41 [0]NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"node-7:40:x [0] NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"node-7:40: [0] NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"40 [0] NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"[0] NCCL INFO Channel 07/0 : 0[0] -> 1[0]",
        b"node-7:40:41 [0] NCCL INFO Channel 107/0 : 0[0] -> 1[0]",
        b"node-7:40:41 [0] NCCL INFO Channel 7/0 : 0[0] -> 1[0]",
        b"node-7:40:41 [0] NCCL INFO Channel 07",
    ],
)
def test_a_line_of_another_form_is_like_no_other(line: bytes) -> None:
    two = (line + b"\n") * 2
    assert native().sift(two, 0, len(two), False) == (2, [(0, line, 0), (1, line, 0)])


def test_what_is_forgotten_comes_again() -> None:
    sieve = native()
    part = LINE + b"\n"
    _, [(_, _, its_hash)] = sieve.sift(part, 0, len(part), False)
    sieve.learn([its_hash])
    assert sieve.sift(part, 0, len(part), False) == (1, [])
    sieve.forget([its_hash])
    assert len(sieve.sift(part, 0, len(part), False)[1]) == 1


def test_what_is_added_again_and_again_comes_once() -> None:
    part = (LINE + b"\n") * 10
    sifted = sieves.Sifted(native(), Part(part, 0, len(part)), prefixed=False)
    numbers = []
    for number, _, its_hash in sifted.rows():
        numbers.append(number)
        sifted.add((its_hash,), number)
    assert numbers == list(range(10))


def test_of_more_than_it_has_room_for_it_forgets_some_and_reads_them_again() -> None:
    sieve = native()
    part = b"".join(LINE.replace(b"node-7", b"n%d" % n) + b"\n" for n in range(20_000))
    _, rows = sieve.sift(part, 0, len(part), False)
    hashes = [row[2] for row in rows]
    sieve.learn(range(1, 1 << 60, 1 << 39))
    sieve.learn(hashes)
    _, again = sieve.sift(part, 0, len(part), False)
    assert len(hashes) == 20_000
    assert {row[2] for row in again} <= set(hashes)
    assert len(again) < 1000


@pytest.mark.parametrize(
    ("start", "stop"), [(-1, 1), (0, 5), (3, 2)], ids=["before", "behind", "backwards"]
)
def test_no_part_of_the_data(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="no such part"):
        native().sift(b"abc\n", start, stop, False)


@pytest.mark.parametrize("number", [0, -1, 1 << 60, 1 << 70])
def test_no_hash(number: int) -> None:
    with pytest.raises((ValueError, OverflowError)):
        native().learn([number])


def test_it_stays_inside_what_it_is_given(tmp_path: Path) -> None:
    compiler = parts.program("gcc", "gcc")
    if not HEADERS.is_file():
        pytest.skip(f"needs {HEADERS}")
    strict = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Werror", "-Wall")
    subprocess.run(
        [compiler, "-std=c11", "-g", "-O1", "-shared", "-fPIC", "-Wextra", "-Wconversion", *strict,
         f"-I{HEADERS.parent}", "-o", str(tmp_path / "_sieve.so"), str(SOURCE)],
        check=True,
    )  # fmt: skip
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # Python keeps what it has had until its end; and its own small blocks have no guards.
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "LD_PRELOAD": library}
    script = Path(__file__).with_name("sanitised_sieve.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | quiet, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
