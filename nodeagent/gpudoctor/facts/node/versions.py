"""Versions of drivers and CUDA: numbers that compare as numbers, whatever surrounds them.

A driver release is branch.minor[.patch] (580.126.09). A CUDA version is major.minor, with a third
part that says nothing about compatibility: an update until 13.3, a build number from 13.4 on.
"""

from __future__ import annotations

import re

import msgspec

_DRIVER = re.compile(r"(?<![\d.])(\d{3,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?![\d.]*\d)")
_BRANCH = re.compile(r"\s*[Rr]?(\d{3})\s*\Z")
_CUDA = re.compile(r"(?<![\d.])(\d{1,2})\.(\d{1,2})(?:\.(\d{1,4}))?(?!\d)")
_WHEEL = re.compile(r"(?<![a-z])cu(\d{2})(\d)(?!\d)")
_MAJOR = re.compile(r"\s*(\d{1,2})\s*\Z")
_NEWEST = 9999


class DriverVersion(msgspec.Struct, frozen=True, order=True):
    """A driver release. A bare branch (R580) stands for its newest release."""

    branch: int
    minor: int = _NEWEST
    patch: int = 0

    def __str__(self) -> str:
        if self.minor == _NEWEST:
            return f"R{self.branch}"
        patch = f".{self.patch:02d}" if self.patch else ""
        return f"{self.branch}.{self.minor:02d}{patch}"


class CudaVersion(msgspec.Struct, frozen=True, order=True):
    """A CUDA level or toolkit: what the runtime compares."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def parse_driver(text: str) -> DriverVersion | None:
    """Return the driver release in a text (`580.126.09`, `R580`), None if there is none."""
    if match := _BRANCH.match(text):
        return DriverVersion(int(match[1]))
    if match := _DRIVER.search(text):
        return DriverVersion(int(match[1]), int(match[2]), int(match[3] or 0))
    return None


def parse_cuda(text: str) -> CudaVersion | None:
    """Return the CUDA version in a text, None if there is none.

    Takes `12.8`, `12.8.1-devel-ubuntu22.04`, a bare major, and the cuNNN of wheels (`cu128`).
    """
    if match := _MAJOR.match(text):
        return CudaVersion(int(match[1]), 0)
    if (match := _WHEEL.search(text)) or (match := _CUDA.search(text)):
        return CudaVersion(int(match[1]), int(match[2]))
    return None
