"""An open-loop load generator: arrival times are fixed in advance, and no request waits for another's image.

A generator that waits for answers sends less exactly when the server is slow, and never measures the worst case
(coordinated omission: Tene, "How NOT to Measure Latency"). Here every request has its time, and its latency counts
from that time even if the generator was late to send it. The records have that delay as the stage "generator".
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

from lab.runs import RequestRecord
from lab.runs.answers import ReceivedAnswer, record_of
from lab.runs.asking import check_askable, request_of
from lab.workloads import Arrival, Workload
from pentimento.domain.errors import Cancelled, InvalidArgument, PentimentoError
from pentimento.domain.image_request import Accepted, CacheMode, Completed
from pentimento.sdk.client import AsyncClient

ANY_TENANT = ""
Score = Callable[[Completed], float | None]
OnAnswer = Callable[[RequestRecord, ReceivedAnswer], None]


@dataclass(frozen=True)
class LoadSettings:
    """Settings of the generator. `send_deadline`: send the rest of each deadline, so that the server may drop requests.
    An answer missing `grace_s` after the deadline counts as failed. `lead_s`: time before the first arrival for
    connections to settle. `detailed_stages`: keep the workers' own stages apart."""

    send_deadline: bool = True
    grace_s: float = 30.0
    lead_s: float = 0.5
    cache: CacheMode | None = None
    conditioning_image: bytes = b""
    detailed_stages: bool = False

    def __post_init__(self) -> None:
        for name in ("grace_s", "lead_s"):
            if not getattr(self, name) >= 0:
                raise InvalidArgument.of(name, f"must be at least 0 s, got {getattr(self, name)}")


async def play(
    workload: Workload,
    clients: Mapping[str, AsyncClient],
    settings: LoadSettings | None = None,
    *,
    score: Score | None = None,
    on_answer: OnAnswer | None = None,
) -> list[RequestRecord]:
    """Return one record per arrival, in the order of the workload.

    `clients` are by tenant, ANY_TENANT for all tenants without their own. `score` returns an image's quality; it
    runs on a thread, after the request's end was noted. `on_answer` is called at every end. Cancelling the task
    cancels the running requests, which end as CANCELLED.
    """
    player = _Player(clients, settings or LoadSettings(), score, on_answer)
    check_askable(workload, player.settings.conditioning_image)
    for tenant in {arrival.tenant for arrival in workload.arrivals}:
        player.client_of(tenant)
    return await player.play(workload)


class _Player:
    def __init__(
        self,
        clients: Mapping[str, AsyncClient],
        settings: LoadSettings,
        score: Score | None,
        on_answer: OnAnswer | None,
    ) -> None:
        self._clients = clients
        self.settings = settings
        self._score = score
        self._on_answer = on_answer
        self._began_at = 0.0

    def client_of(self, tenant: str) -> AsyncClient:
        client = self._clients.get(tenant) or self._clients.get(ANY_TENANT)
        if client is None:
            raise InvalidArgument.of("clients", f"must have one for tenant {tenant!r}, or one for any")
        return client

    async def play(self, workload: Workload) -> list[RequestRecord]:
        self._began_at = asyncio.get_running_loop().time() + self.settings.lead_s
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, arrival in enumerate(workload.arrivals):
                # A pause even when behind: the requests that are due get their turn, too.
                await asyncio.sleep(max(0.0, arrival.at_s - self._now()))
                tasks.append(group.create_task(self._ask(number, arrival)))
        return [task.result() for task in tasks]

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began_at

    async def _ask(self, number: int, arrival: Arrival) -> RequestRecord:
        return self._tell(number, arrival, await self._receive(number, arrival))

    def _tell(self, number: int, arrival: Arrival, received: ReceivedAnswer) -> RequestRecord:
        record = record_of(number, arrival, received, self.settings.detailed_stages)
        if self._on_answer is not None:
            self._on_answer(record, received)
        return record

    async def _receive(self, number: int, arrival: Arrival) -> ReceivedAnswer:
        sent_s = self._now()
        left_s = arrival.at_s + arrival.deadline_s - sent_s
        request_id, completed, error = "", None, None
        settings = self.settings
        request = request_of(
            arrival, left_s if settings.send_deadline else None, settings.cache, settings.conditioning_image
        )
        try:
            async with (
                asyncio.timeout(max(0.0, left_s) + settings.grace_s),
                aclosing(self.client_of(arrival.tenant).stream(request)) as events,
            ):
                async for event in events:
                    if isinstance(event, Accepted):
                        request_id = event.request_id
                    elif isinstance(event, Completed):
                        completed = event
        except TimeoutError:
            pass
        except PentimentoError as raised:
            error = raised
        except asyncio.CancelledError:
            # Ended requests alone would favour quick ones.
            gone = Cancelled("RUN_ENDED", "the run ended before the answer came")
            self._tell(number, arrival, ReceivedAnswer(sent_s, self._now(), request_id, error=gone))
            raise
        ended_s = self._now()
        if completed is None:
            return ReceivedAnswer(sent_s, ended_s, request_id, error=error)
        answer = ReceivedAnswer(sent_s, ended_s, request_id, completed.provenance)
        try:
            return replace(answer, quality=await self._scored(completed))
        except asyncio.CancelledError:
            self._tell(number, arrival, answer)  # the image exists, with or without a known quality
            raise

    async def _scored(self, completed: Completed) -> float | None:
        return None if self._score is None else await asyncio.to_thread(self._score, completed)
