"""What an asker has already, and need not be sent again."""

from starlette.requests import HTTPConnection

ANYTHING = "*"


def asker_has(request: HTTPConnection, tag: str) -> bool:
    """Return whether the asker names that tag (in quotes) as one whose answer it has. Weak ones count."""
    return any(tag in line for line in _lines(request))


def asks_for_new_alone(request: HTTPConnection) -> bool:
    """Return whether it asks for an answer only where there is nothing: `*` is whatever is there (RFC 9110, 13.1.2)."""
    return any(line.strip() == ANYTHING for line in _lines(request))


def _lines(request: HTTPConnection) -> list[str]:
    return request.headers.getlist("if-none-match")
