"""Tolerant access: quantities in every form Kubernetes writes, times, and misshapen JSON."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudoctor.facts.kubernetes import fields

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("0.000000001"),
    "u": Decimal("0.000001"),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    "M": Decimal(1000) ** 2,
    "G": Decimal(1000) ** 3,
    "T": Decimal(1000) ** 4,
    "P": Decimal(1000) ** 5,
    "E": Decimal(1000) ** 6,
    "Ki": Decimal(1024),
    "Mi": Decimal(1024) ** 2,
    "Gi": Decimal(1024) ** 3,
    "Ti": Decimal(1024) ** 4,
    "Pi": Decimal(1024) ** 5,
    "Ei": Decimal(1024) ** 6,
}
MODEST = settings(deadline=None, max_examples=60)


class TestQuantity:
    @pytest.mark.parametrize(("suffix", "scale"), SUFFIXES.items())
    def test_suffixes(self, suffix: str, scale: Decimal) -> None:
        assert fields.quantity(f"3{suffix}") == 3 * scale
        assert fields.quantity(f"-1.5{suffix}") == Decimal("-1.5") * scale

    @pytest.mark.parametrize(
        ("written", "amount"),
        [
            (8, "8"),
            (0.5, "0.5"),
            ("8", "8"),
            (" 8 ", "8"),
            ("+8", "8"),
            (".5", "0.5"),
            ("5.", "5"),
            ("1e3", "1000"),
            ("1E3", "1000"),
            ("12e-1", "1.2"),
            ("1E", "1000000000000000000"),
            ("0", "0"),
            ("1" + "0" * 30, "1" + "0" * 30),
        ],
    )
    def test_forms(self, written: Any, amount: str) -> None:
        assert fields.quantity(written) == Decimal(amount)

    @pytest.mark.parametrize(
        "written",
        [
            *("", " ", "Gi", "m", "eight", "8GB", "1ki", "1KI", "1iG", "1mm", "1e", "1ei"),
            *("NaN", "Infinity", "-inf", "1e31", "1e999999999", "9" * 65, "0x10", "1,5"),
            *(True, False, None, [], {}, float("nan"), float("inf")),
        ],
    )
    def test_what_is_none(self, written: Any) -> None:
        assert fields.quantity(written) is None

    @MODEST
    @given(
        st.decimals(-(10**9), 10**9, places=3, allow_nan=False),
        st.sampled_from(sorted(SUFFIXES)),
    )
    def test_round_trip(self, number: Decimal, suffix: str) -> None:
        assert fields.quantity(f"{number:f}{suffix}") == number * SUFFIXES[suffix]

    @MODEST
    @given(st.integers(-999, 999), st.integers(-12, 12), st.sampled_from("eE"))
    def test_exponents(self, number: int, exponent: int, letter: str) -> None:
        assert fields.quantity(f"{number}{letter}{exponent}") == Decimal(number).scaleb(exponent)

    @MODEST
    @given(JSON | st.text(alphabet="0123456789.+-eEKMGTPimnuk ", max_size=12))
    def test_anything(self, written: Any) -> None:
        amount = fields.quantity(written)
        assert amount is None or amount.is_finite()

    def test_resource_list(self) -> None:
        amounts: dict[str, Any] = {
            "cpu": "500m",
            "memory": "1Gi",
            "odd": "x",
            "none": None,
            "list": [],
        }
        assert fields.quantities({"r": amounts}, "r") == {
            "cpu": Decimal("0.5"),
            "memory": Decimal(2**30),
        }


class TestAccess:
    OBJECT = {  # noqa: RUF012 - read only
        "a": {"b": {"c": 1}},
        "text": "x",
        "number": 7,
        "real": 1.5,
        "yes": True,
        "no": False,
        "null": None,
        "list": ["x", 1, True, None, {"k": "v"}, ["y"]],
        "digits": "42",
    }

    def test_at(self) -> None:
        assert fields.at(self.OBJECT, "a", "b", "c") == 1
        assert fields.at(self.OBJECT) is self.OBJECT
        assert fields.at(self.OBJECT, "a", "x", "c") is None
        assert fields.at(self.OBJECT, "text", "x") is None

    def test_mapping_and_objects(self) -> None:
        assert fields.mapping(self.OBJECT, "a", "b") == {"c": 1}
        assert fields.mapping(self.OBJECT, "list") == {}
        assert fields.mapping(self.OBJECT, "null") == {}
        assert fields.objects(self.OBJECT, "list") == [{"k": "v"}]
        assert fields.objects(self.OBJECT, "a") == []

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("text", "x"),
            ("number", "7"),
            ("real", "1.5"),
            ("yes", "true"),
            ("no", "false"),
            ("null", None),
            ("a", None),
            ("list", None),
            ("missing", None),
        ],
    )
    def test_text(self, key: str, text: str | None) -> None:
        assert fields.text(self.OBJECT, key) == text

    def test_texts_and_text_map(self) -> None:
        assert fields.texts(self.OBJECT, "list") == ("x", "1", "true")
        assert fields.texts(self.OBJECT, "text") == ()
        assert fields.text_map({"m": {"a": 1, "b": None, "c": "x"}}, "m") == {"a": "1", "c": "x"}

    @pytest.mark.parametrize(
        ("key", "number"),
        [
            ("number", 7),
            ("digits", 42),
            ("real", 1),
            ("yes", None),
            ("no", None),
            ("text", None),
            ("null", None),
            ("list", None),
        ],
    )
    def test_integer(self, key: str, number: int | None) -> None:
        assert fields.integer(self.OBJECT, key) == number

    def test_integer_of_what_is_none(self) -> None:
        assert fields.integer(float("inf")) is None
        assert fields.integer(float("nan")) is None

    def test_flag_is_true_alone(self) -> None:
        assert fields.flag(self.OBJECT, "yes")
        assert not any(fields.flag(self.OBJECT, key) for key in ("no", "text", "number", "gone"))

    @MODEST
    @given(JSON, st.lists(st.text(max_size=6), max_size=3))
    def test_any_json(self, value: Any, path: list[str]) -> None:
        assert isinstance(fields.mapping(value, *path), dict)
        assert isinstance(fields.objects(value, *path), list)
        assert isinstance(fields.texts(value, *path), tuple)
        assert isinstance(fields.text_map(value, *path), dict)
        assert isinstance(fields.quantities(value, *path), dict)
        assert isinstance(fields.flag(value, *path), bool)
        fields.integer(value, *path)
        fields.text(value, *path)
        fields.moment(value, *path)


class TestMoment:
    @pytest.mark.parametrize(
        ("written", "moment"),
        [
            ("2026-11-20T08:00:00Z", datetime(2026, 11, 20, 8, tzinfo=UTC)),
            (
                "2026-11-20T08:00:00.250000Z",
                datetime(2026, 11, 20, 8, 0, 0, 250000, tzinfo=UTC),
            ),
            ("2026-11-20T08:00:00", datetime(2026, 11, 20, 8, tzinfo=UTC)),
            ("yesterday", None),
            ("", None),
            (None, None),
            (1763625600, None),
        ],
    )
    def test_forms(self, written: Any, moment: datetime | None) -> None:
        assert fields.moment(written) == moment

    def test_zone_is_kept(self) -> None:
        moment = fields.moment("2026-11-20T08:00:00+02:00")
        assert moment == datetime(2026, 11, 20, 6, tzinfo=UTC)
        assert moment is not None
        assert moment.utcoffset() == timedelta(hours=2)
