"""What a newer frontdoor makes of the journal's unfinished requests, whatever happened to the clock in between."""

from dataclasses import dataclass

import pytest

from pentimento.clients.messages.image import request_to_bytes
from pentimento.domain.image_request import ImageRequest
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.records import AcceptedRequest, RequestRecord
from services.frontdoor.jobs import Jobs
from services.frontdoor.recovery import recover
from services.frontdoor.resolution import RequestLimits, as_request, resolve
from tests.unit.frontdoor.models import HELD

ACCEPTED_AT, DEADLINE_S, NOW = 1_000.0, 60.0, 5.0


@dataclass(frozen=True)
class Clock:
    wall_s: float

    def monotonic(self) -> float:
        return NOW

    def wall(self) -> float:
        return self.wall_s


def unfinished() -> RequestRecord:
    resolved = resolve(ImageRequest("a red circle"), HELD, RequestLimits(max_request_cost=64 * 64 * 100), drawn_seed=7)
    accepted = AcceptedRequest(
        "r1", "a", request_to_bytes(as_request(resolved)), "", ACCEPTED_AT, deadline_at=ACCEPTED_AT + DEADLINE_S
    )
    return RequestRecord(accepted, RequestState.ACCEPTED)


@pytest.mark.parametrize(
    ("wall_s", "left_s"),
    [
        pytest.param(ACCEPTED_AT + 20.0, 40.0, id="as it should"),
        pytest.param(ACCEPTED_AT - 36_000.0, DEADLINE_S, id="set back by hours"),
        pytest.param(ACCEPTED_AT + 36_000.0, DEADLINE_S - 36_000.0, id="set forward by hours"),
    ],
)
def test_a_recovered_request_has_what_was_left_of_its_time_and_never_more(wall_s: float, left_s: float) -> None:
    (request,) = recover([unfinished()], Jobs(), Clock(wall_s), default_deadline_s=600.0).requests

    assert request.deadline == pytest.approx(NOW + left_s)
