"""Tolerant access to decoded JSON: a missing or misshapen field is None or empty, never an error.

API objects reach us through dumps, old versions and hands; `status: null`, a list with null
in it, or a number where a string belongs must not stop a diagnosis.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

JsonObject = dict[str, Any]

_SUFFIX = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_MAX_QUANTITY_CHARS = 64
_MAX_EXPONENT = 30


def at(value: Any, *path: str) -> Any:
    """Return what stands at the path, None where it ends early."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def mapping(value: Any, *path: str) -> JsonObject:
    """Return the object at the path, empty if there is none."""
    found = at(value, *path)
    return found if isinstance(found, dict) else {}


def objects(value: Any, *path: str) -> list[JsonObject]:
    """Return the objects of the list at the path, leaving out what is not an object."""
    found = at(value, *path)
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def text(value: Any, *path: str) -> str | None:
    """Return the string at the path; numbers and booleans as YAML would have written them."""
    found = at(value, *path)
    if isinstance(found, str):
        return found
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, int | float):
        return str(found)
    return None


def texts(value: Any, *path: str) -> tuple[str, ...]:
    """Return the strings of the list at the path."""
    found = at(value, *path)
    if not isinstance(found, list):
        return ()
    return tuple(as_text for item in found if (as_text := text(item)) is not None)


def text_map(value: Any, *path: str) -> dict[str, str]:
    """Return the object at the path with its string values."""
    return {
        key: as_text
        for key, item in mapping(value, *path).items()
        if (as_text := text(item)) is not None
    }


def integer(value: Any, *path: str) -> int | None:
    """Return the whole number at the path, from a number or a string of digits."""
    found = at(value, *path)
    if isinstance(found, bool):
        return None
    try:
        return int(found)
    except (TypeError, ValueError, OverflowError):
        return None


def flag(value: Any, *path: str) -> bool:
    """Return whether the path holds true."""
    return at(value, *path) is True


def moment(value: Any, *path: str) -> datetime | None:
    """Return the RFC 3339 time at the path, with its time zone, None if it is not one."""
    found = at(value, *path)
    if not isinstance(found, str):
        return None
    try:
        parsed = datetime.fromisoformat(found)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def quantity(value: Any) -> Decimal | None:
    """Parse a Kubernetes quantity (`8`, "8", `8k`, `1e3`, `500m`, `64Gi`) to its plain number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    written = str(value).strip()
    if not written or len(written) > _MAX_QUANTITY_CHARS:
        return None
    digits = written.rstrip("numkKMGTPEi")
    scale = _SUFFIX.get(written[len(digits) :])
    if digits[-1:] in ("e", "E") or scale is None:
        return None
    try:
        number = Decimal(digits)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > _MAX_EXPONENT:
        return None
    return number * scale


def quantities(value: Any, *path: str) -> dict[str, Decimal]:
    """Return the resource list at the path, leaving out what is no quantity."""
    return {
        key: amount
        for key, item in mapping(value, *path).items()
        if (amount := quantity(item)) is not None
    }
