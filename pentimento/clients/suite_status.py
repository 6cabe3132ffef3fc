"""Collect the status of controller, frontdoor and gateway, for `pentimento status` and the console."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict

from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse as FrontdoorStatus
from pentimento.api.vectordb.v1.vectordb_gateway_service_pb2 import GetStatisticsResponse as CacheStatistics
from pentimento.domain.errors import PentimentoError
from pentimento.domain.fleet import Fleet
from pentimento.domain.provenance_document import as_json


@dataclass(frozen=True)
class SuiteStatus:
    """Hold the status of a suite. A part is None if its process is missing or did not answer; `unanswered` has the
    reasons by process."""

    fleet: Fleet | None
    frontdoor: FrontdoorStatus | None
    cache: CacheStatistics | None
    unanswered: dict[str, str]

    @property
    def answered(self) -> bool:
        """Return whether any process answered."""
        return any(part is not None for part in (self.fleet, self.frontdoor, self.cache))

    @classmethod
    def of(
        cls,
        fleet: Fleet | BaseException | None,
        frontdoor: FrontdoorStatus | BaseException | None,
        cache: CacheStatistics | BaseException | None,
    ) -> "SuiteStatus":
        answers = {"controller": fleet, "frontdoor": frontdoor, "gateway": cache}
        failed = {name: answer for name, answer in answers.items() if isinstance(answer, BaseException)}
        for error in failed.values():
            if not isinstance(error, PentimentoError):
                raise error
        return cls(
            None if isinstance(fleet, BaseException) else fleet,
            None if isinstance(frontdoor, BaseException) else frontdoor,
            None if isinstance(cache, BaseException) else cache,
            {name: str(error) for name, error in failed.items()},
        )


def as_document(status: SuiteStatus) -> dict[str, Any]:
    def plain(message: Any) -> Any:
        return None if message is None else MessageToDict(message, preserving_proto_field_name=True)

    return {
        "fleet": as_json(status.fleet),
        "frontdoor": plain(status.frontdoor),
        "cache": plain(status.cache),
        "unanswered": status.unanswered,
    }


async def gathered(
    fleet: Awaitable[Fleet | None],
    frontdoor: Awaitable[FrontdoorStatus | None],
    cache: Awaitable[CacheStatistics | None],
) -> SuiteStatus:
    """Call all three concurrently; a failed one has a reason in place of its part."""
    return SuiteStatus.of(*await asyncio.gather(fleet, frontdoor, cache, return_exceptions=True))
