"""Output as JSON, and values of options: finite numbers, durations."""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from pentimento.domain.errors import InvalidArgument

if TYPE_CHECKING:
    from rich.table import Table

# One JSON document, or one per line, in place of text. docs/command-json.md names the fields.
json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="print JSON instead of words")


def say(document: Any, words: str, *, as_json: bool) -> None:
    """Print the document on one line, or the words."""
    click.echo(json.dumps(document, ensure_ascii=False) if as_json else words)


def plain_table(*headings: str) -> "Table":
    """Return a table without lines; its columns fold."""
    from rich.table import Table  # not for `--help`

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


class FiniteFloat(click.ParamType[float]):
    """A finite float; click's own types accept NaN and infinities."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; NaN, infinities and other texts are a usage error of the option."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"must be a finite number, got {number}", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """A finite float within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; NaN, numbers out of bounds and other texts are a usage error of the option."""
        return float(super().convert(FINITE.convert(value, param, ctx), param, ctx))


FINITE = FiniteFloat()
_UNITS_S = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
# The limit of the contract; the server has a lower one.
_MOST_MS = 2**63 - 1


def duration_ms(field: str, text: str) -> int:
    """Return the milliseconds of a number with its unit: 30d, 12h, 1.5h, 90m, 45s. Raises InvalidArgument."""
    number, unit = text[:-1], text[-1:].lower()
    refused = InvalidArgument.of(field, f"must be a number and d, h, m or s, such as 30d, got {text[:40]!r}")
    if unit not in _UNITS_S or not number.replace(".", "", 1).isdecimal():
        raise refused
    found_ms = float(number) * _UNITS_S[unit] * 1000
    if not 0.5 < found_ms < _MOST_MS:
        raise refused
    return round(found_ms)
