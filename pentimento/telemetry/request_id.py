"""The id that ties together what several processes log about one request."""

import random
import re
from contextvars import ContextVar

# Ids come from callers and end up in log lines: nothing that could forge one gets through.
ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,64}")

request_id: ContextVar[str] = ContextVar("pentimento_request_id", default="")


def current_request_id() -> str:
    """Id of the request being served in this context; "" outside of one."""
    return request_id.get()


def new_request_id() -> str:
    """16 hex digits: unlikely to meet another, not a secret."""
    return f"{random.getrandbits(64):016x}"


def accept_request_id(offered: str | bytes | None) -> str:
    """The caller's id when it is well-formed, else a new one."""
    if isinstance(offered, str) and ACCEPTED.fullmatch(offered):
        return offered
    return new_request_id()
