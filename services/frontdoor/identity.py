"""Identify this frontdoor to workers and to the journal."""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import Attempt
from pentimento.domain.reasons import Reason

STANDBY_RETRY_MS = 1000


@dataclass
class Identity:
    """Hold the frontdoor's id and epoch. `epoch` is 0 in a standby and set once, at takeover. `journal_id` names the
    journal that issued the epoch."""

    frontdoor_id: str
    epoch: int = 0
    journal_id: str = ""

    def require_active(self) -> None:
        """Raise Unavailable STANDBY in a standby: it knows no workers, so it would report that none is ready."""
        if not self.epoch:
            raise Unavailable(Reason.STANDBY, "this frontdoor is a standby", retry_after_ms=STANDBY_RETRY_MS)

    def attempt(self, request_id: str, tenant: str, number: int, token: int) -> Attempt:
        return Attempt(request_id, number, token, self.frontdoor_id, self.epoch, tenant)


@cache
def build_version() -> str:
    """Return the version of the installed package; "source" for a bare source tree."""
    try:
        return version("pentimento")
    except PackageNotFoundError:
        return "source"
