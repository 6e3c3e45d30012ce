"""Reports of `ncclras` inside a log: who is gone, who is behind, and any text after the header."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.nccl import parse
from tests.nccl_logs import diagnose, loud, names, pair, read, ring, start

CASES = Path(__file__).parent.parent.parent / "cases/nccl"
HEADER = "NCCL version 2.27.5 compiled with CUDA 12.9\n"
DEAD = (CASES / "21-ras-process-dead.log").read_text()
BEHIND = (CASES / "22-ras-rank-stays-behind.log").read_text()
ONCE = (CASES / "23-ras-mismatch-once-healthy.log").read_text()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300))
def test_cuts_do_not_matter(size: int) -> None:
    for text in (DEAD, BEHIND):
        raw = text.encode()
        cut = parse([raw[at : at + size] for at in range(0, len(raw), size)])
        assert (cut.ras_processes, cut.ras_lags) == (
            parse([raw]).ras_processes,
            parse([raw]).ras_lags,
        )


_WORDS = st.sampled_from(
    [
        "DEAD\n", "INCOMPLETE\n", "#0-0 (ab) MISMATCH\n", "\n", "  ", "99999999999999999999",
        "  Process 3 on node n managing GPU 1\n", "  3 ranks have launched up to operation 5\n",
        "  Rank 2 -- GPU 2 managed by process 4 on node n\n", "  2 ranks have not launched any\n",
        "  Rank 1 has launched up to operation 4 -- GPU 1 managed by process 4 on node n\n", HEADER,
    ]
)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.lists(_WORDS, max_size=30))
def test_any_mix_of_its_own_words(words: list[str]) -> None:
    diagnose(read(HEADER + "".join(words) + "\n"))


def test_a_report_between_the_lines_of_a_job() -> None:
    log = read("\n".join(start(pair())) + "\n" + DEAD + "\n".join(ring(pair())) + "\n")
    assert [(found.pid, found.is_dead) for found in log.ras_processes] == [(218, True)]
    assert log.gdr == "all"
    assert "nccl-process-unresponsive" in loud(diagnose(log))


def test_a_long_log_between_reports_does_not_matter() -> None:
    noise = "step\n" * 100_000
    log = read(noise + BEHIND.replace("Job summary", "Job summary\n" + noise[:5000]) + noise)
    assert [lag.is_stuck for lag in log.ras_lags] == [True]


def test_one_report_of_a_busy_job_is_no_finding() -> None:
    assert names(diagnose(read(ONCE))) == set()


def test_a_rank_that_goes_on_is_not_stuck() -> None:
    moved = BEHIND[: len(BEHIND) // 2] + BEHIND[len(BEHIND) // 2 :].replace("9074", "9120")
    assert [lag.is_stuck for lag in read(moved).ras_lags] == [False]
