"""Options of `pentimento up` for the cache: each is a setting of the gateway."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from pentimento.cli.numbers import FiniteRange

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
