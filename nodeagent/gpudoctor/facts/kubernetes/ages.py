"""Times as kubectl prints them: RFC 1123 dates, and ages such as `5m (x12 over 30m)`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
"""Stands for "now" in a text that holds ages and no date: only the order of its times counts."""

DATE = r"[A-Z][a-z]{2}, \d{2} [A-Z][a-z]{2} \d{4} \d{2}:\d{2}:\d{2} [+-]\d{4}"
AGE = r"(?:<unknown>|<invalid>|(?:\d{1,9}[ydhms])+)"
SEEN = rf"{AGE}(?: \(x\d{{1,9}} over {AGE}\))?"
_DATE_FORMAT = "%a, %d %b %Y %H:%M:%S %z"
_UNITS = {"y": 365 * 86400, "d": 86400, "h": 3600, "m": 60, "s": 1}
_PART = re.compile(r"(\d{1,9})([ydhms])")
_SEEN = re.compile(rf"(?P<last>{AGE})(?: \(x(?P<count>\d+) over (?P<first>{AGE})\))?")
_LONGEST_SECONDS = 100 * _UNITS["y"]


class Seen(msgspec.Struct, frozen=True):
    """When an event was seen: seconds ago (None if not known) and how often."""

    last: int | None = None
    first: int | None = None
    count: int = 1


def age_seconds(text: str) -> int | None:
    """Return the seconds of an age such as `2d3h`; None for `<unknown>` and anything else."""
    parts = _PART.findall(text)
    total = sum(int(number) * _UNITS[unit] for number, unit in parts)
    return total if parts and total <= _LONGEST_SECONDS else None


def seen(text: str) -> Seen:
    """Read the Age or LAST SEEN column."""
    match = _SEEN.match(text.strip())
    if match is None:
        return Seen()
    last = age_seconds(match["last"])
    if match["count"] is None:
        return Seen(last, last)
    return Seen(last, age_seconds(match["first"]), int(match["count"]))


def moment(text: str) -> datetime | None:
    """Read a date as `kubectl describe` prints it; None for the zero time and anything else."""
    try:
        found = datetime.strptime(text.strip(), _DATE_FORMAT).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.year > 1 else None


def before(now: datetime, seconds: int | None) -> str | None:
    """Return the RFC 3339 time that many seconds before `now`."""
    return None if seconds is None else rfc3339(now - timedelta(seconds=seconds))


def rfc3339(when: datetime) -> str:
    """Write a time as the API does."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
