"""Text of bounded size: what others wrote ends up in objects that everyone reads."""

from __future__ import annotations

from gpudoctor.render.clean import clean, one_line

_ELLIPSIS = " …"


def cut(text: str, most: int) -> str:
    """Return the text on one line, without control characters, in at most `most` bytes of UTF-8."""
    return _within(one_line(text), most)


def camel(name: str) -> str:
    """Return a finding's name as the reason of a condition or Event: RdmaPortDown."""
    words = "".join(word.capitalize() for word in name.split("-"))
    return "".join(letter for letter in words if letter.isascii() and letter.isalnum()) or "Unnamed"


def block(text: str, most: int) -> str:
    """Return the text without control characters, its lines kept, in at most `most` bytes."""
    return _within(clean(text), most)


def _within(text: str, most: int) -> str:
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most:
        return text
    return raw[: most - len(_ELLIPSIS.encode())].decode("utf-8", "ignore").rstrip() + _ELLIPSIS
