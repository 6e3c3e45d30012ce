"""What text is laid out on: a width, colours or none, glyphs that the stream can show."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import TextIO

from gpudoctor.render.clean import clean

_MAX_WIDTH, _MIN_WIDTH, _PLAIN_WIDTH = 100, 40, 80
_STYLED = re.compile(r"\x1b\[[0-9;]*m")
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ASCII = {"→": "->", "✗": "x", "!": "!", "✓": "ok", "•": "-", "…": "...", "’": "'", "·": "-"}


def _columns() -> int:
    from shutil import get_terminal_size  # imported late: it brings bz2 and lzma with it

    return get_terminal_size().columns


class Paper:
    """Collects lines and writes them to a stream."""

    def __init__(self, stream: TextIO, *, color: bool | None = None, width: int | None = None):
        """`color` None means on a terminal without NO_COLOR; `width` None that of the terminal."""
        self._stream = stream
        is_terminal = stream.isatty()
        self._color = _wants_color() and is_terminal if color is None else color
        if width is None:
            width = _columns() if is_terminal else _PLAIN_WIDTH
        self.width = max(_MIN_WIDTH, min(width, _MAX_WIDTH))
        self._encoding = stream.encoding or "utf-8"
        self._is_unicode = _can_show(self._encoding)

    def style(self, text: str, *styles: str) -> str:
        """Return the text in these styles, unchanged where there is no colour."""
        if not self._color or not text or not styles:
            return text
        return f"\x1b[{';'.join(_STYLES[style] for style in styles)}m{text}\x1b[0m"

    def blank(self) -> None:
        """Write an empty line."""
        self._write("")

    def text(
        self,
        text: str,
        *styles: str,
        first: str = "",
        rest: str | None = None,
        verbatim: bool = False,
    ) -> None:
        """Write a paragraph after the prefix `first`; its further lines after `rest`.

        `rest` is by default as many blanks as `first` is wide. A `verbatim` text is for pasting:
        it keeps its lines.
        """
        rest = " " * visible(first) if rest is None else rest
        lines: list[str] = []
        for paragraph in clean(text).split("\n"):
            room = self.width - cells(rest)
            taken = max(0, visible(first) - cells(rest)) if not lines else 0
            lines += [paragraph] if verbatim else wrap(paragraph, room, taken)
        for number, line in enumerate(lines):
            prefix = rest if number else first
            self._write((prefix + self.style(line, *styles)).rstrip())

    def _write(self, line: str) -> None:
        if not self._is_unicode:
            for glyph, plain in _ASCII.items():
                line = line.replace(glyph, plain)
            line = line.encode(self._encoding, "replace").decode(self._encoding)
        self._stream.write(line + "\n")


def _wants_color() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _can_show(encoding: str) -> bool:
    try:
        "".join(_ASCII).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def cells(text: str) -> int:
    """Return how many columns a text takes: East Asian wide ones two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


def visible(styled: str) -> int:
    """Return how many columns a text takes that this module styled."""
    return cells(_STYLED.sub("", styled))


def wrap(text: str, width: int, taken: int = 0) -> list[str]:
    """Break at blanks; a word wider than the line is broken where the line ends.

    `taken` columns of the first line are in use already.
    """
    lines: list[str] = []
    line = ""
    room = max(1, width - taken)
    for word in text.split():
        joined = f"{line} {word}" if line else word
        if cells(joined) <= room:
            line = joined
            continue
        if line or (taken and not lines and cells(word) > room):
            lines.append(line)
            room = width
        while cells(word) > room:
            part = _fitting(word, room)
            lines.append(word[:part])
            word, room = word[part:], width
        line = word
    return [*lines, line]


def _fitting(word: str, width: int) -> int:
    """Return how many characters of a word fit, preferring to end after a separator."""
    end = total = 0
    for end, char in enumerate(word):  # noqa: B007 - the index is what is wanted
        total += cells(char)
        if total > width:
            break
    cut = max(word.rfind(mark, 0, end) + 1 for mark in "/,;=&")
    return cut if cut > end // 2 else max(end, 1)
