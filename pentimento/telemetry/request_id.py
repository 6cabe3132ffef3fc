"""Provide the id that connects the logs of several processes about one request."""

import random
import re
from contextvars import ContextVar

# Ids come from callers and reach log lines: this pattern rejects any that could forge a line.
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,64}")

request_id: ContextVar[str] = ContextVar("pentimento_request_id", default="")


def current_request_id() -> str:
    """Return the id of the current request; "" outside of one."""
    return request_id.get()


def new_request_id() -> str:
    """Return 16 hex digits: unlikely to collide, not a secret."""
    return f"{random.getrandbits(64):016x}"


def accept_request_id(offered: str | bytes | None) -> str:
    if isinstance(offered, str) and ACCEPTED.fullmatch(offered):
        return offered
    return new_request_id()
