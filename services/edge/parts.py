"""The parts that the handlers of the edge share."""

from dataclasses import dataclass
from functools import cached_property

from services.edge.caller_channels import CallerChannels
from services.edge.console.history import HistoryReader
from services.edge.http.bodies import BodyBudget
from services.edge.readiness import Readiness
from services.edge.settings import EdgeSettings, aliases_of


@dataclass(frozen=True)
class EdgeParts:
    """Hold the shared parts of an edge process.

    `frontdoor`, `controller` and `gateway` open channels with the caller's token; the latter two are None without such
    a service. `bodies` bounds the memory of all request bodies. `history` is None if no samples are stored."""

    settings: EdgeSettings
    frontdoor: CallerChannels
    bodies: BodyBudget
    readiness: Readiness
    controller: CallerChannels | None = None
    gateway: CallerChannels | None = None
    history: HistoryReader | None = None

    @cached_property
    def model_aliases(self) -> dict[str, str]:
        """Return models by alias."""
        return aliases_of(self.settings.model_aliases)
