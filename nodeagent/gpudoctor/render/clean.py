"""Text from outside, made safe for a terminal: logs, events and names may hold anything."""

from __future__ import annotations

import re

# As text: re compiles, once, what a text is not printable without.
_ESCAPES = (
    r"(?s)\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\x9c|$)"  # OSC, DCS and such, with their strings
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_LINE_ENDS = r"\r\n|[\r\x0b\x0c\x85\u2028\u2029]"
# Controls, bidirectional overrides and marks, zero-width and tag characters, lone surrogates.
_UNSEEN = (
    "[\x00-\x08\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
_LONG = 600
_HEAD, _TAIL = 400, 150


def clean(text: str) -> str:
    """Return the text without what a terminal would act on; only newlines remain of controls."""
    if text.replace("\n", "").isprintable():
        return text  # all that is looked for is of Unicode's categories that do not print
    lines = re.sub(_LINE_ENDS, "\n", re.sub(_ESCAPES, "", text))
    return re.sub(_UNSEEN, "", lines.replace("\t", " "))


def one_line(text: str) -> str:
    """Return the cleaned text with all runs of blanks and line ends as one blank, shortened."""
    return shorten(" ".join(clean(text).split()))


def shorten(text: str) -> str:
    """Leave out the middle of a long text and say how much that was."""
    if len(text) <= _LONG:
        return text
    left_out = len(text) - _HEAD - _TAIL
    return f"{text[:_HEAD]} [… {left_out:,} characters …] {text[-_TAIL:]}"
