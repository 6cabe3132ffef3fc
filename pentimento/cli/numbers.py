"""Types of finite numbers for options; click's own types accept NaN and infinities."""

import math
from typing import Any

import click


class FiniteFloat(click.ParamType[float]):
    """A finite float."""

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
