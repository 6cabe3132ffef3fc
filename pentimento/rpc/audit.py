"""Log who changed what: a line of the logger `pentimento.audit` for each call that only administrators may make, and
for each call that the rules of callers reject.

It is the only log that names tenants. Keys and uploaded bytes are not in it: a key exists in answers only.
"""

import logging
from collections.abc import Iterator

from google.protobuf.message import Message

from pentimento.domain.identity import Caller, Role

logger = logging.getLogger("pentimento.audit")

ADMINISTRATORS = frozenset({Role.ADMIN, Role.TENANT_ADMIN})
READS = ("Get", "List", "Watch")
SUBJECT_CHARACTERS = 200


def is_audited(path: str, roles: frozenset[Role]) -> bool:
    """Return whether the calls of "/package.Service/Method" are logged: those of administrators that change state."""
    return roles <= ADMINISTRATORS and not path.rpartition("/")[2].startswith(READS)


def subject_of(request: object) -> str:
    """Return the texts of a request and of the messages in it as "field=text"; "" for a stream of requests."""
    return " ".join(_texts(request))[:SUBJECT_CHARACTERS] if isinstance(request, Message) else ""


def _texts(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if isinstance(value, str):
            yield f"{field.name}={value}"
        elif isinstance(value, Message):
            yield from _texts(value)


def log_call(path: str, caller: Caller | None, peer: str, subject: str, code: str) -> None:
    """Log a call that has ended; `caller` None: its token is unknown."""
    tenant = caller.tenant if caller is not None else ""
    fields = {"method": path, "tenant": tenant, "peer": peer, "subject": subject, "code": code}
    logger.info("administration", extra=fields)
