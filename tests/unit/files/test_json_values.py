"""Dataclasses as JSON and back."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.files.json_values import ValueRange, from_json, to_json
from tests.support.refusals import wrong_refusals


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Inner:
    count: Annotated[int, ValueRange(1, 9)]
    share: Annotated[float, ValueRange(0.0)] = 0.5


@dataclass(frozen=True)
class Outer:
    name: str
    colour: Colour
    number: float
    flag: bool
    inner: Inner
    pairs: tuple[tuple[float, int], ...] = ()
    names: frozenset[str] = frozenset()
    limits: Mapping[str, float | None] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    maybe: int | None = 4


SMALLEST = {"name": "a", "colour": "red", "number": 1, "flag": False, "inner": {"count": 2}}


def test_a_value_is_written_and_read_back() -> None:
    value = Outer(
        name="a",
        colour=Colour.BLUE,
        number=0.1,
        flag=True,
        inner=Inner(3, 0.25),
        pairs=((0.5, 1), (1.5, 2)),
        names=frozenset({"y", "x"}),
        limits={"fast": 1.5, "slow": None},
        machine={"cores": 2},
        maybe=None,
    )

    text = json.dumps(to_json(value))

    assert json.loads(text) == {
        "name": "a",
        "colour": "blue",
        "number": 0.1,
        "flag": True,
        "inner": {"count": 3, "share": 0.25},
        "pairs": [[0.5, 1], [1.5, 2]],
        "names": ["x", "y"],
        "limits": {"fast": 1.5, "slow": None},
        "machine": {"cores": 2},
    }
    assert from_json(Outer, json.loads(text)) == value


def test_fields_that_are_left_out_have_their_defaults_or_are_none() -> None:
    assert from_json(Outer, SMALLEST) == Outer("a", Colour.RED, 1.0, False, Inner(2, 0.5), maybe=None)


def test_numbers_that_are_not_finite_are_texts() -> None:
    for number in (math.inf, -math.inf):
        assert to_json(number) == str(number)
        assert from_json(float, str(number)) == number
    assert to_json(math.nan) == "nan"
    assert math.isnan(from_json(float, "nan"))


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"more": 1, "names": []}, "at.more", "is not known"),
    ({"colour": "green"}, "at.colour", "must be one of red, blue"),
    ({"name": 7}, "at.name", "must be a text, got '7'"),
    ({"flag": 1}, "at.flag", "must be true or false, got '1'"),
    ({"number": True}, "at.number", "must be a number, got True"),
    ({"number": math.nan}, "at.number", "must be a number, got 'nan'"),
    ({"number": "1"}, "at.number", "must be a number, got '1'"),
    ({"number": 10**400}, "at.number", f"must be a number, got '1{'0' * 59}'"),
    ({"maybe": 1.5}, "at.maybe", "must be a whole number, got '1.5'"),
    ({"inner": []}, "at.inner", "must be an object, got '[]'"),
    ({"inner": {"share": 1.0}}, "at.inner.count", "is missing"),
    ({"inner": {"count": True}}, "at.inner.count", "must be a whole number, got True"),
    ({"inner": {"count": 0}}, "at.inner.count", "must be at least 1 and at most 9, got 0"),
    ({"inner": {"count": 10}}, "at.inner.count", "must be at least 1 and at most 9, got 10"),
    ({"inner": {"count": 1, "share": "nan"}}, "at.inner.share", "must be at least 0 and finite, got nan"),
    ({"inner": {"count": 1, "share": "inf"}}, "at.inner.share", "must be at least 0 and finite, got inf"),
    ({"names": {}}, "at.names", "must be a list, got '{}'"),
    ({"pairs": [[1.0, 1], [1.0]]}, "at.pairs[1]", "must have 2 entries, got 1"),
    ({"pairs": [[1.0, "x"]]}, "at.pairs[0][1]", "must be a whole number, got 'x'"),
    ({"limits": []}, "at.limits", "must be an object, got '[]'"),
    ({"limits": {"fast": "x"}}, "at.limits.fast", "must be a number, got 'x'"),
]


def test_from_json_names_field_and_problem() -> None:
    rows = [
        (SMALLEST | changes, f"^{re.escape(f'{field_name}: {problem}')}$") for changes, field_name, problem in WRONG
    ]

    assert wrong_refusals(InvalidArgument, lambda document: from_json(Outer, document, "at"), rows) == []


def test_a_field_at_the_top_has_no_path() -> None:
    with pytest.raises(InvalidArgument, match=r"^name: is missing"):
        from_json(Outer, {})
