"""Numbers that options of commands take: never NaN or infinite, which click's own types let pass."""

import math
from typing import Any

import click


class FiniteFloat(click.ParamType[float]):
    """A float."""

    name = "float"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fails by the option's name where it is none, NaN or infinite."""
        number = float(click.FLOAT.convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"must be a finite number, got {number}", param, ctx)
        return number


class FiniteRange(click.FloatRange):
    """A float within bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fails by the option's name where it is none, NaN, or out of bounds."""
        return float(super().convert(FINITE.convert(value, param, ctx), param, ctx))


FINITE = FiniteFloat()
