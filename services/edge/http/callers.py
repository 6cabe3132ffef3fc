"""Read a request's token and key; the frontdoor decides about them."""

from starlette.requests import HTTPConnection

from pentimento.domain.errors import InvalidArgument, Unauthenticated

SCHEME = "bearer"
MAX_TOKEN_CHARS = 1024
KEY_HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 128


def token_of(request: HTTPConnection) -> str | None:
    """Return the caller's bearer token; None for a missing or empty one and for other schemes, since a suite without
    tokens accepts those callers. Unauthenticated MALFORMED_TOKEN for an invalid one."""
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise malformed_token()
    scheme, _, token = given[0].strip().partition(" ") if given else ("", "", "")
    token = token.strip()
    if scheme.lower() != SCHEME or not token:
        return None
    if not (token.isascii() and token.isprintable()) or len(token) > MAX_TOKEN_CHARS:
        raise malformed_token()
    return token


def malformed_token() -> Unauthenticated:
    return Unauthenticated("MALFORMED_TOKEN", "the header Authorization must be `Bearer <token>`, once")


def idempotency_key_of(request: HTTPConnection) -> str:
    """Return the idempotency key of a call, "" without one. InvalidArgument for an invalid one."""
    given = request.headers.getlist(KEY_HEADER)
    if not given:
        return ""
    key = given[0]
    if len(given) > 1 or not 1 <= len(key) <= MAX_KEY_CHARS or not (key.isascii() and key.isprintable()):
        raise InvalidArgument.of(KEY_HEADER, f"must occur once, with 1 to {MAX_KEY_CHARS} printable ASCII characters")
    return key


def caller_of(request: HTTPConnection) -> str:
    """Return the caller's identity before the frontdoor knows it: the token, else the IP address. Unauthenticated like
    `token_of`."""
    return token_of(request) or (request.client.host if request.client is not None else "")
