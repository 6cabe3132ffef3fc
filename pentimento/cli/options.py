"""TODO."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import click

from pentimento.domain.errors import InvalidArgument

json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="print JSON instead of words")


def say(document: Any, words: str, *, as_json: bool) -> None:
    """Print the document on one line, or the words."""
    click.echo(json.dumps(document, ensure_ascii=False) if as_json else words)


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


_EVICTIONS = ("fifo", "lru", "lfu", "lcbfu", "aged", "none")
_OPTIONS = (
    click.option(
        "--reuse-rule",
        type=click.Choice(["profile", "minimum", "lower_bound", "mean"]),
        help="which reuse profile serves where a model has several [mean with --policy modm, else profile: the most"
        " cautious]",
    ),
    click.option(
        "--eviction",
        type=click.Choice(_EVICTIONS),
        help="rule of a full cache: fifo evicts entries, others single latents and images [the policy's, else fifo]",
    ),
    click.option(
        "--cache-bias",
        type=click.IntRange(-10, 10),
        help="tenths of the steps by which hits skip more (above 0) or less; 10: the stored image itself"
        " [the policy's, else 0]",
    ),
    click.option(
        "--scratch-share", type=FiniteRange(0.0, 1.0), help="share of requests that never use the cache, for diversity"
    ),
    click.option(
        "--renoised-share",
        type=FiniteRange(0.0, 1.0),
        help="share of its K steps by which a start of another seed's image is noised again",
    ),
    click.option(
        "--match-predictor",
        type=click.Choice(["auto", "off", "always"]),
        help="predict misses before a search: while it gains time (auto), never, or always",
    ),
)
_NAMES = ("reuse_rule", "eviction", "cache_bias", "scratch_share", "renoised_share", "match_predictor")


def cache_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def cache_arguments(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the gateway's flags for the options that were given."""
    usual = {"reuse_rule": "mean"} if options["policy"] == "modm" else {}
    found = {name: usual.get(name) if options[name] is None else options[name] for name in _NAMES}
    given = ((name, value) for name, value in found.items() if value is not None)
    return tuple(word for name, value in given for word in (f"--{name.replace('_', '-')}", str(value)))
