"""Large logs are read by two processes, and say what they say to one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpudoctor.errors import InputError
from gpudoctor.facts.nccl.lines import LARGEST, Source
from gpudoctor.facts.nccl.parser import Parser
from gpudoctor.readings import nccl_log
from gpudoctor.sources.text import open_input
from tests.nccl_logs import Rank, ring, start

pytest.importorskip("numpy")
nccl_ahead = pytest.importorskip("gpudoctor.readings.nccl_ahead")

WAIT_S = 60
FORMS = {
    "bare": "{line}",
    "time": "2025-03-04T10:00:{n:02d}.000000001Z {line}",
    "JSON": '{{"log":"{line}\\n","stream":"stderr","time":"2025-03-04T10:00:{n:02d}Z"}}',
}
Pieces = list[Source | bytes]


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the tests run, a second process counts as useful."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def job(seed: int) -> list[str]:
    """Lines of a job that starts three times, once with another network, and is interleaved."""
    rng = random.Random(seed)
    ranks = [Rank(f"node-{n}", n) for n in range(8)]
    lines: list[str] = []
    for life in range(3):
        own: list[list[str]] = []
        for rank in ranks:
            via = "NET/Socket/0" if life == 1 and rank.rank == 5 else "NET/IB/{0}/GDRDMA"
            own.append(
                start([rank], nranks=8, comm_id=f"0xab{life}")
                + [
                    rank.info(
                        f"Channel {n % 32:02d}/0 : {rank.rank}[0] -> {n % 8}[0] [send] via "
                        + via.format(n % 4)
                    )
                    for n in range(1500)
                ]
                + [f"step {n} loss 2.5 tokens/s 412.7" for n in range(150)]
            )
        while any(own):
            one = rng.choice([some for some in own if some])
            lines += one[:3]
            del one[:3]
    return lines


def cut(raw: bytes, rng: random.Random) -> Iterator[bytes]:
    while raw:
        size = rng.choice((70_001, 200_000, 1 << 20))
        yield raw[:size]
        raw = raw[size:]


def pieces(form: str, seed: int) -> Pieces:
    """Three sources: a whole one, one cut at its end inside a line, and one with a long line."""
    rng = random.Random(seed)
    raw = "\n".join(form.format(line=line, n=n % 60) for n, line in enumerate(job(seed))).encode()
    long = raw[: len(raw) // 2] + b"\n" + b"y" * 2 * LARGEST + b" NCCL \n" + raw[len(raw) // 2 :]
    found: Pieces = []
    for name, text in (("a.log", raw + b"\n"), ("b.log", raw[:-10]), ("c.log", long)):
        found += [Source(name), *cut(text, rng)]
    return found


def alone(some: Pieces) -> Parser:
    parser = Parser()
    for piece in some:
        if isinstance(piece, Source):
            parser.open(piece.name)
        else:
            parser.feed(piece)
    return parser


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("before", [1, 2, 9])
def test_two_say_what_one_says(form: str, before: int) -> None:
    some = pieces(form, before)
    parser = alone(some[:before])
    assert nccl_ahead.is_read(parser, iter(some[before:]))
    log = parser.finish()
    assert log == alone(some).finish()
    assert log.runs > 1
    assert {use.network for use in log.net} == {"IB", "Socket"}


@pytest.mark.usefixtures("two_cores")
def test_a_large_file_is_read_by_two_from_the_command_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.log"
    path.write_text("\n".join(job(4)))
    with open_input(str(path)) as text:
        expected = nccl_log.read(text)
    used: list[bool] = []
    is_read = nccl_ahead.is_read

    def noted(*what: object) -> bool:
        used.append(is_read(*what))
        return used[-1]

    monkeypatch.setattr(nccl_ahead, "is_read", noted)
    monkeypatch.setattr(nccl_log, "_LARGE", 1 << 18)
    with open_input(str(path)) as text:
        assert nccl_log.read(text) == expected
    assert used == [True]


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("broken", [OSError("no more processes"), None])
def test_where_no_second_process_can_be_had_one_reads_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: OSError | None
) -> None:
    def start_nothing(_self: object) -> None:
        assert broken is not None
        raise broken

    path = tmp_path / "x.log"
    path.write_text("\n".join(job(5)))
    with open_input(str(path)) as text:
        expected = nccl_log.read(text)
    if broken is None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    monkeypatch.setattr("multiprocessing.context.ForkProcess.start", start_nothing)
    monkeypatch.setattr(nccl_log, "_LARGE", 1 << 18)
    with open_input(str(path)) as text:
        assert nccl_log.read(text) == expected


def failing(some: Pieces, error: Exception | None) -> Iterator[Source | bytes]:
    yield from some
    if error is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        raise error


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("error", "raised", "said"),
    [
        (InputError("b.log: cannot be read: Input/output error"), InputError, r"^b\.log: .*output"),
        (ValueError("a defect"), RuntimeError, "^ValueError: a defect$"),
        (None, InputError, r"^c\.log: .*status -9"),
    ],
    ids=["unreadable", "defect", "killed"],
)
def test_what_ends_the_second_process_is_said(
    error: Exception | None, raised: type[Exception], said: str
) -> None:
    parser = alone([])
    with pytest.raises(raised, match=said):
        nccl_ahead.is_read(parser, failing(pieces("{line}", 1), error))
    assert not psutil.Process().children()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core, so there is one process")
def test_ctrl_c_ends_both_without_a_traceback() -> None:
    ranks = [Rank("node-a", 0), Rank("node-b", 1)]
    more = "\n".join([*ring(ranks), ""]).encode() * 5000
    process = psutil.Popen(
        [sys.executable, "-m", "gpudoctor", "nccl", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    with process:
        process.stdin.write("\n".join([*start(ranks), ""]).encode())
        while not (second := process.children()):
            process.stdin.write(more)
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        _, living = psutil.wait_procs(second, WAIT_S)
        assert not living
        assert b"Traceback" not in process.stderr.read()
