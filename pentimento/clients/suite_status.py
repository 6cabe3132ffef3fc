"""Collect the status of controller, frontdoor and gateway, for `pentimento status` and the console."""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    reasons by process. `cells`: the frontdoors by name, and `frontdoor` their sum; empty in a suite without cells."""

    fleet: Fleet | None
    frontdoor: FrontdoorStatus | None
    cache: CacheStatistics | None
    unanswered: dict[str, str]
    cells: dict[str, FrontdoorStatus] = field(default_factory=dict)

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
        parts: dict[str, Any] = {name: None if name in failed else answer for name, answer in answers.items()}
        unanswered = {name: str(error) for name, error in failed.items()}
        return cls(parts["controller"], parts["frontdoor"], parts["gateway"], unanswered)


def as_document(status: SuiteStatus) -> dict[str, Any]:
    def plain(message: Any) -> Any:
        return None if message is None else MessageToDict(message, preserving_proto_field_name=True)

    return {
        "fleet": as_json(status.fleet),
        "frontdoor": plain(status.frontdoor),
        "cache": plain(status.cache),
        "unanswered": status.unanswered,
        "cells": {name: plain(one) for name, one in status.cells.items()},
    }


async def gathered(
    fleet: Awaitable[Fleet | None],
    frontdoors: Mapping[str, Awaitable[FrontdoorStatus | None]],
    cache: Awaitable[CacheStatistics | None],
) -> SuiteStatus:
    """Call all concurrently; a failed one has a reason in place of its part. `frontdoors`: by cell, or the only one
    with the name ""."""
    parts: list[Awaitable[Any]] = [fleet, cache, *frontdoors.values()]
    first, second, *found = await asyncio.gather(*parts, return_exceptions=True)
    answers = dict(zip(frontdoors, found, strict=True))
    if set(answers) == {""}:
        return SuiteStatus.of(first, answers[""], second)
    good = {name: one for name, one in answers.items() if isinstance(one, FrontdoorStatus)}
    failed = next((one for one in answers.values() if isinstance(one, BaseException)), None)
    status = SuiteStatus.of(first, summed(tuple(good.values())) if good else failed, second)
    unanswered = {f"cell {name}": str(one) for name, one in answers.items() if isinstance(one, BaseException)}
    return replace(status, cells=good, unanswered=status.unanswered | unanswered)


# Totals of a frontdoor, and of its lists the fields that identify an entry, with the totals of an entry.
_TOTALS = ("accepted_count", "completed_count", "failed_count", "cancelled_count", "rejected_count", "retried_count")
_WORK = ("steps_run", "steps_saved", "image_device_s", "shadow_device_s")
_POOL = ("queued_count", "running_count", "queue_limit_count", "arrived_count", "completed_count", "dropped_count")
_LISTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pools": (("pool",), (*_POOL, "late_count", "scored_count", "deferred_count")),
    "workers": (("worker_id", "worker_generation"), ("in_flight_count",)),
    "latencies": (("upper_bound_s",), ("request_count",)),
    "starts": (("kind", "saved_steps"), ("image_count",)),
    "rejections": (("reason",), ("request_count",)),
    "models": (("name",), ()),
}


def summed(cells: Sequence[FrontdoorStatus]) -> FrontdoorStatus:
    """Return the sum of the cells' counts; other values are the first one's."""
    total = FrontdoorStatus()
    total.CopyFrom(cells[0])
    total.ClearField("cell")
    for other in cells[1:]:
        for name in (*_TOTALS, *_WORK):
            setattr(total, name, getattr(total, name) + getattr(other, name))
        for name, (keys, counts) in _LISTS.items():
            known = {tuple(getattr(one, key) for key in keys): one for one in getattr(total, name)}
            for one in getattr(other, name):
                same = known.get(tuple(getattr(one, key) for key in keys))
                if same is None:
                    getattr(total, name).append(one)
                    continue
                for count in counts:
                    setattr(same, count, getattr(same, count) + getattr(one, count))
    return total
