"""Switches in the query of a store's url."""

from collections.abc import Mapping

from pentimento.domain.errors import InvalidArgument

_WORDS = {"true": True, "false": False}


def switch(field: str, options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return what the option says, `default` where it is not there. Raises InvalidArgument naming the url's `field` for
    anything but true and false: a word that is taken for "no" would leave off what was asked for."""
    word = options.get(name, str(default).lower())
    if word not in _WORDS:
        raise InvalidArgument.of(field, f"{name} must be true or false, got {word!r}")
    return _WORDS[word]
