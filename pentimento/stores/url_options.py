"""Read switches from the query of a store's url."""

from collections.abc import Mapping

from pentimento.domain.errors import InvalidArgument

_WORDS = {"true": True, "false": False}


def switch(field: str, options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return the option's value, or `default` if it is missing. Raises InvalidArgument naming the url's `field` for any
    word except true and false: an unknown word read as "no" would disable a requested option."""
    word = options.get(name, str(default).lower())
    if word not in _WORDS:
        raise InvalidArgument.of(field, f"{name} must be true or false, got {word!r}")
    return _WORDS[word]
