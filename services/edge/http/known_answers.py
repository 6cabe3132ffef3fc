"""Conditional requests: answers that the client already has."""

from starlette.requests import HTTPConnection

ANYTHING = "*"


def client_has(request: HTTPConnection, tag: str) -> bool:
    """Return whether If-None-Match has a tag (in quotes), also as a weak one."""
    return any(tag in line for line in _lines(request))


def matches_any(request: HTTPConnection) -> bool:
    """Return whether If-None-Match is `*`, which matches any existing answer (RFC 9110, 13.1.2)."""
    return any(line.strip() == ANYTHING for line in _lines(request))


def _lines(request: HTTPConnection) -> list[str]:
    return request.headers.getlist("if-none-match")
