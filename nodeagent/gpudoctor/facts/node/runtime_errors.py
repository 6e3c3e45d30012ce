"""Errors that the container runtime, its toolkit, the device plugin or CUDA printed: the facts."""

from __future__ import annotations

import msgspec

from gpudoctor.report import Evidence, Subject


class RecognisedError(msgspec.Struct, frozen=True):
    """A line that names its cause: the name of its finding, the line, and what it says inside."""

    name: str
    text: str
    values: dict[str, str] = {}


class ErrorLines(msgspec.Struct, frozen=True, kw_only=True):
    """The recognised errors of one text, each with where it stands, first ones only.

    `subject` is the pod, node or log that the text belongs to.
    """

    subject: Subject
    errors: tuple[tuple[RecognisedError, Evidence], ...]
    related: tuple[Subject, ...] = ()
