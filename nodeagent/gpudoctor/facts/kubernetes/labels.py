"""Label selectors as kubectl writes them: `a=b`, `a!=b`, `a in (b,c)`, `a notin (b)`, `a`, `!a`.

Source: k8s.io/apimachinery/pkg/labels.
"""

from __future__ import annotations

import re

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes.model import Requirement

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_KEY = r"(?P<key>[\w./-]+)"
_SET = re.compile(rf"{_KEY}\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)")
_EQUAL = re.compile(rf"{_KEY}\s*(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)")
_EXISTS = re.compile(rf"(?P<no>!?)\s*{_KEY}")


def parse(selector: str) -> tuple[Requirement, ...]:
    """Parse a selector; InputError names the part that is not one."""
    return tuple(_requirement(part.strip()) for part in _PART.findall(selector) if part.strip())


def _requirement(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        values = tuple(value.strip() for value in match["values"].split(","))
        return Requirement(match["key"], "In" if match["op"] == "in" else "NotIn", values)
    if match := _EQUAL.fullmatch(part):
        operator = "NotIn" if match["op"] == "!=" else "In"
        return Requirement(match["key"], operator, (match["value"],))
    if match := _EXISTS.fullmatch(part):
        return Requirement(match["key"], "DoesNotExist" if match["no"] else "Exists")
    raise InputError(f"label selector: {part!r} is not KEY=VALUE, KEY in (A,B), KEY or !KEY")
