"""Parse durations such as 30d, 12h, 90m, 45s."""

from pentimento.domain.errors import InvalidArgument

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
