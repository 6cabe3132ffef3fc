"""Who this frontdoor is to workers and to the journal."""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from pentimento.domain.generation import Attempt


@dataclass
class Identity:
    """`epoch` is 0 while it is a standby, and set once when it becomes the active one. `journal_id` is of the journal
    that the epoch was claimed in."""

    frontdoor_id: str
    epoch: int = 0
    journal_id: str = ""

    def attempt(self, request_id: str, tenant: str, number: int, token: int) -> Attempt:
        """Return an attempt of this frontdoor's."""
        return Attempt(request_id, number, token, self.frontdoor_id, self.epoch, tenant)


@cache
def build_version() -> str:
    """Return the version of the installed package; "source" for a bare source tree."""
    try:
        return version("pentimento")
    except PackageNotFoundError:
        return "source"
