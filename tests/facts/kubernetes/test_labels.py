"""Label selectors: each form of kubectl, round trips, and parts that are none."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.errors import InputError
from gpudoctor.facts.kubernetes import labels, placement
from gpudoctor.facts.kubernetes.model import Requirement

MODEST = settings(deadline=None, max_examples=60)
KEYS = st.from_regex(r"[a-z]([a-z.-]{0,6}[a-z])?(/[a-z]{1,6})?", fullmatch=True)
VALUES = st.from_regex(r"[a-z0-9]([a-z0-9_.-]{0,5}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    ("selector", "requirements"),
    [
        ("", ()),
        (" , ", ()),
        ("a=b", (Requirement("a", "In", ("b",)),)),
        ("a==b", (Requirement("a", "In", ("b",)),)),
        ("a = b", (Requirement("a", "In", ("b",)),)),
        ("a=", (Requirement("a", "In", ("",)),)),
        ("a!=b", (Requirement("a", "NotIn", ("b",)),)),
        ("a in (b, c)", (Requirement("a", "In", ("b", "c")),)),
        ("a notin (b)", (Requirement("a", "NotIn", ("b",)),)),
        ("a", (Requirement("a", "Exists"),)),
        ("!a", (Requirement("a", "DoesNotExist"),)),
        (
            "x.io/a=b,c in (d,e),!f",
            (
                Requirement("x.io/a", "In", ("b",)),
                Requirement("c", "In", ("d", "e")),
                Requirement("f", "DoesNotExist"),
            ),
        ),
    ],
)
def test_forms(selector: str, requirements: tuple[Requirement, ...]) -> None:
    assert labels.parse(selector) == requirements


@pytest.mark.parametrize("selector", ["a=b=c", "a b", "=b", "a in b", "!a=b", "a>1", "a=(b)"])
def test_what_is_none(selector: str) -> None:
    with pytest.raises(InputError, match="is not KEY=VALUE"):
        labels.parse(selector)


PARTS = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda p: (f"{p[0]}={p[1]}", Requirement(p[0], "In", (p[1],)))),
    st.tuples(KEYS, VALUES).map(lambda p: (f"{p[0]}!={p[1]}", Requirement(p[0], "NotIn", (p[1],)))),
    KEYS.map(lambda key: (key, Requirement(key, "Exists"))),
    KEYS.map(lambda key: (f"!{key}", Requirement(key, "DoesNotExist"))),
    st.tuples(KEYS, st.lists(VALUES, min_size=1, max_size=3), st.sampled_from(["in", "notin"])).map(
        lambda p: (
            f"{p[0]} {p[2]} ({','.join(p[1])})",
            Requirement(p[0], "In" if p[2] == "in" else "NotIn", tuple(p[1])),
        )
    ),
)


@MODEST
@given(st.lists(PARTS, max_size=4))
def test_round_trip(parts: list[tuple[str, Requirement]]) -> None:
    parsed = labels.parse(",".join(written for written, _ in parts))
    assert parsed == tuple(requirement for _, requirement in parts)


@MODEST
@given(st.text(max_size=60) | st.text(alphabet="ab=!,() in", max_size=30))
def test_garbage_is_refused_or_read(selector: str) -> None:
    try:
        parsed = labels.parse(selector)
    except InputError:
        return
    for requirement in parsed:
        assert isinstance(placement.matches(requirement, {"a": "b"}), bool)
