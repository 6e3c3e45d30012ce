"""The feature file as NFD's worker reads it, by its documented rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.publish import nfd

NOW = datetime(2026, 11, 29, 20, 15, 30, tzinfo=timezone(timedelta(hours=1)))
LABELS = {"gpudoctor.io/verdict": "healthy", "gpudoctor.io/driver": "580126009"}
LIFE = timedelta(seconds=180)


def labels_of_nfd(text: str, now: datetime) -> dict[str, str]:
    """What the worker makes of a file at a time."""
    found: dict[str, str] = {}
    expiry = now
    for line in map(str.strip, text.split("\n")):
        if line.startswith("# +"):
            name, _, value = line.removeprefix("# +").partition("=")
            assert name == "expiry-time", "any other directive is an error in NFD's log"
            expiry = datetime.fromisoformat(value)
        elif line and not line.startswith("#") and not expiry < now:
            key, _, value = line.partition("=")
            found[key] = value
    return found


def test_nfd_sees_the_labels_until_they_expire() -> None:
    text = nfd.render(LABELS, NOW, LIFE)
    assert labels_of_nfd(text, NOW) == LABELS
    assert labels_of_nfd(text, NOW + LIFE) == LABELS
    assert labels_of_nfd(text, NOW + LIFE + timedelta(seconds=1)) == {}
    assert "# +expiry-time=2026-11-29T19:18:30Z\n" in text


def test_no_label_is_a_file_without_labels() -> None:
    assert labels_of_nfd(nfd.render({}, NOW, LIFE), NOW) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpudoctor.io/verdict", "healthy\nnode-role.kubernetes.io/control-plane="),
        ("gpudoctor.io/verdict", "a b"),
        ("example.com/verdict", "healthy"),
        ("gpudoctor.io/verdict", "x" * 64),
    ],
)
def test_what_is_no_label_of_ours_is_never_written(key: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a label of ours"):
        nfd.render({key: value}, NOW, LIFE)


@settings(deadline=None)
@given(st.dictionaries(st.from_regex(r"\Agpudoctor\.io/[a-z-]{1,20}\Z"), st.text(max_size=70)))
def test_a_file_has_exactly_the_labels_that_were_given(labels: dict[str, str]) -> None:
    try:
        text = nfd.render(labels, NOW, LIFE)
    except ValueError:
        return
    assert labels_of_nfd(text, NOW.astimezone(UTC)) == labels
    assert len(text) < 65536


@settings(deadline=None)
@given(st.text(max_size=200))
def test_whatever_stands_in_the_file_only_labels_of_ours_are_read(text: str) -> None:
    for key, value in nfd.parse(text, NOW).items():
        nfd.render({key: value}, NOW, LIFE)


def test_what_was_written_is_read_until_it_expires() -> None:
    text = nfd.render(LABELS, NOW, LIFE)
    assert nfd.parse(text, NOW + LIFE) == LABELS
    assert nfd.parse(text, NOW + LIFE + timedelta(seconds=1)) == {}
