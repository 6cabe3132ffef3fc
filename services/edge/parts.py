"""What the handlers of the edge share."""

from dataclasses import dataclass
from functools import cached_property

from services.edge.caller_channels import CallerChannels
from services.edge.history.reader import HistoryReader
from services.edge.http.bodies import BodyBudget
from services.edge.readiness import Readiness
from services.edge.settings import EdgeSettings, aliases_of


@dataclass(frozen=True)
class EdgeParts:
    """`frontdoor`, `controller` and `gateway` give channels that carry a caller's own token, the latter two None where
    there is none; `bodies` bounds what requests hold together. `history` is None where none is kept."""

    settings: EdgeSettings
    frontdoor: CallerChannels
    bodies: BodyBudget
    readiness: Readiness
    controller: CallerChannels | None = None
    gateway: CallerChannels | None = None
    history: HistoryReader | None = None

    @cached_property
    def model_aliases(self) -> dict[str, str]:
        """Models by their further names."""
        return aliases_of(self.settings.model_aliases)
