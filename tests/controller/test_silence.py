"""Silence: only what was watched counts, and no clock but ours."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.controller.silence import LOOKS, Silence

LEASE = "agent-gpu-1"


def watch(silence: Silence, renewal: str, start: float, seconds: float) -> float:
    """Look at one Lease every interval; the time of the last look."""
    now = start
    while now <= start + seconds:
        silence.saw({LEASE: renewal} if renewal else {}, [LEASE], now)
        now += silence.interval
    return now - silence.interval


def test_a_lease_that_stands_still_for_the_timeout_is_silent() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 1000, 165)
    assert not silence.is_silent(LEASE, now)
    now = watch(silence, "t1", now + silence.interval, 0)
    assert silence.is_silent(LEASE, now)
    assert silence.renewal(LEASE) == "t1"


def test_a_renewal_is_a_sign_of_life_whatever_time_it_says() -> None:
    silence = Silence(180)
    now = watch(silence, "2026-11-29T19:00:00Z", 0, 170)
    now = watch(silence, "1987-01-01T00:00:00Z", now + 5, 170)
    assert not silence.is_silent(LEASE, now)


def test_a_missing_lease_counts_from_when_it_was_missed() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 0, 300)
    now = watch(silence, "", now + 15, 165)
    assert not silence.is_silent(LEASE, now)
    now = watch(silence, "", now + 15, 0)
    assert silence.is_silent(LEASE, now)
    assert silence.leases() == ()


def test_a_new_node_has_its_whole_time() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 0, 300)
    silence.saw({LEASE: "t1"}, [LEASE, "agent-new"], now + 15)
    assert not silence.is_silent("agent-new", now + 15)


def test_after_looks_that_failed_everyone_has_his_whole_time_again() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 0, 165)
    silence.saw({LEASE: "t1"}, [LEASE], now + 60)
    assert not silence.is_silent(LEASE, now + 60)
    assert not silence.is_silent(LEASE, now + 60 + 179)


def test_one_look_that_is_missed_costs_nothing() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 0, 150)
    silence.saw({LEASE: "t1"}, [LEASE], now + 2 * silence.interval)
    assert silence.is_silent(LEASE, now + 2 * silence.interval)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.booleans()), min_size=1, max_size=80),
    st.floats(1, 600),
)
def test_who_renews_within_the_timeout_is_never_silent(
    looks: list[tuple[float, bool]], timeout: float
) -> None:
    silence, now, renewal, changed = Silence(timeout), 0.0, 0, 0.0
    for step, renews in looks:
        now += step
        if renews:
            renewal, changed = renewal + 1, now
        silence.saw({LEASE: f"t{renewal}"}, [LEASE], now)
        if silence.is_silent(LEASE, now):
            assert now - changed >= timeout
    assert silence.interval * LOOKS == timeout or abs(silence.interval * LOOKS - timeout) < 1e-6


def test_only_a_renewal_that_was_seen_proves_life() -> None:
    silence = Silence(180)
    now = watch(silence, "t1", 0, 15)
    assert not silence.is_proved_alive(LEASE, now), "it may be a dead agent's"
    now = watch(silence, "t2", now + 15, 165)
    assert silence.is_proved_alive(LEASE, now)
    now = watch(silence, "t2", now + 15, 0)
    assert not silence.is_proved_alive(LEASE, now)
    now = watch(silence, "", now + 15, 0)
    assert not silence.is_proved_alive(LEASE, now)
