"""Run the worker, transport-neutral: nothing until its model is loaded and warm, then attempts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from pentimento.domain.components import changed_components
from pentimento.domain.errors import FailedPrecondition, Unavailable
from pentimento.domain.execution import WorkerCredits
from pentimento.domain.fleet import Capability
from pentimento.policies.step_batching import preparing_count, reserve_count
from pentimento.service import credits as heartbeats
from pentimento.service.credits import CreditNews
from services.unet_worker.attempts.attempt_book import AttemptBook, StreamEvent
from services.unet_worker.attempts.cache_objects import GrantGuard
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.attempts.validation import check_order
from services.unet_worker.device_backend import DeviceBackend, HalfStreams


class UnetWorker:
    """Admit and run attempts, on the event loop only. `credit_count` 0 means the backend's batch limit."""

    def __init__(self, worker_id: str, credit_count: int, orphan_s: float, grants: GrantGuard) -> None:
        self._worker_id = worker_id
        self._fixed_credits = credit_count
        self._grants = grants
        self._loaded: DeviceBackend | None = None
        self.news = CreditNews()
        self.attempts = AttemptBook(
            lambda order, emit: self.loaded.run(order, emit), self._capacity, orphan_s, self.news.changed
        )

    def serve(self, loaded: DeviceBackend) -> None:
        self._loaded = loaded
        self.news.changed()

    @property
    def loaded(self) -> DeviceBackend:
        if self._loaded is None:
            raise Unavailable("WARMING_UP", "the model is still being loaded", retry_after_ms=500)
        return self._loaded

    def _credit_count(self) -> int:
        limit = self.loaded.batch_limit
        return (self._fixed_credits or limit) if limit else 0

    def _reserve_count(self) -> int:
        """Return the reserve places; 0 if whole requests are batched, which cannot be preempted."""
        steps_back = Capability.STEP_BATCHING in self.loaded.capabilities
        return reserve_count(self.loaded.batch_limit) if steps_back and not self._fixed_credits else 0

    def _preparing_count(self) -> int:
        """Return the places for requests in preparation; 0 if whole requests are batched, where a batch forms at one
        time."""
        steps = Capability.STEP_BATCHING in self.loaded.capabilities
        return preparing_count(self.loaded.batch_limit) if steps else 0

    def _capacity(self, frontdoor: str) -> int:
        allowed = self.attempts.credits.allowed(frontdoor, self._credit_count(), self.attempts.held_counts())
        return allowed + self._reserve_count() + self._preparing_count()

    def _offered(self, frontdoor: str) -> WorkerCredits:
        """Return the credits for a message to the frontdoor, with its own attempts only: it would stop others as those
        of an earlier frontdoor."""
        credits, fair = self.credits(), self.attempts.credits
        offered = fair.offered(frontdoor, credits.credit_count, self.attempts.held_counts())
        reserve = fair.reserve(frontdoor, credits.reserve_count)
        own = [held.describe() for held in self.attempts.running() if held.attempt.frontdoor_id == frontdoor]
        return replace(credits, credit_count=offered, reserve_count=reserve, attempts=tuple(own))

    def credits(self) -> WorkerCredits:
        loaded, running = self.loaded, self.attempts.running()
        denoising = loaded.running_count
        return WorkerCredits(
            worker_id=self._worker_id,
            held=loaded.held,
            credit_count=0 if self.attempts.draining else self._credit_count(),
            running_count=min(denoising, len(running)),
            queued_count=max(len(running) - denoising, 0),
            draining=self.attempts.draining,
            capabilities=loaded.capabilities,
            resident_components=(loaded.held.model, *loaded.adapters.resident),
            attempts=tuple(held.describe() for held in running),
            reserve_count=0 if self.attempts.draining else self._reserve_count(),
            known_adapters=loaded.adapters.known,
            preparing_count=0 if self.attempts.draining else self._preparing_count(),
            rejected_adapters=loaded.adapters.rejected,
            component_changes=loaded.adapters.components,
            all_components=True,
            tier_speeds=loaded.adapters.speeds,
        )

    async def watch_credits(
        self, frontdoor_id: str, frontdoor_epoch: int, journal_id: str
    ) -> AsyncGenerator[WorkerCredits, None]:
        """Yield the frontdoor's credits. Raises Unavailable until warm, and Aborted once a newer epoch of the frontdoor
        is seen."""
        _ = self.loaded
        check = partial(self.attempts.meet_frontdoor, frontdoor_id, frontdoor_epoch, journal_id)
        with self.attempts.credits.watching(frontdoor_id):
            async with aclosing(credit_messages(self.news, lambda: self._offered(frontdoor_id), check)) as messages:
                async for credits in messages:
                    yield credits

    def execute(self, order: ExecuteOrder) -> AsyncGenerator[StreamEvent, None]:
        loaded = self.loaded
        check_order(order, loaded.held, loaded.noise_form, loaded.capabilities, loaded.adapters.has)
        loaded.check(order.spec)
        return self.attempts.execute(self._grants.admitted(order))

    async def prefetch(self, names: Collection[str]) -> tuple[str, ...]:
        """Prefetch LoRAs, and return the resident components; other names are ignored."""
        await self.loaded.prefetch(names)
        return self.credits().resident_components

    def halves(self) -> HalfStreams:
        """Return the halves that the device computes for other workers. Raises FailedPrecondition if it computes
        none."""
        halves = self.loaded.halves
        if halves is None:
            raise FailedPrecondition("NO_HALVES", "this worker computes no halves of guidance for others")
        return halves

    def free_half_count(self) -> int:
        """Return the number of halves that may still be opened: the worker's own requests come first."""
        halves = self.loaded.halves
        if halves is None or self.attempts.draining:
            return 0
        taken = sum(not held.yielded for held in self.attempts.running()) + halves.open_count
        return self._credit_count() - taken

    async def drain(self) -> None:
        """Finish running attempts and admit no others. Halves end immediately: their requests continue without them."""
        if self._loaded is not None and self._loaded.halves is not None:
            self._loaded.halves.stop()
        await self.attempts.drain()

    async def close(self) -> None:
        self.attempts.close()
        if self._loaded is not None:
            await asyncio.to_thread(self._loaded.close)


async def credit_messages(
    news: CreditNews, snapshot: Callable[[], WorkerCredits], check: Callable[[], None]
) -> AsyncGenerator[WorkerCredits, None]:
    """Yield the credits now, then after each change, and at least at every second beat. `check` runs at each beat; its
    errors end the stream. Adapters and components are sent only if they differ from the last sent ones: they may be
    many."""
    told: tuple[object, ...] = ()
    last: WorkerCredits | None = None
    clock, sent_at = asyncio.get_running_loop().time, 0.0
    async with aclosing(news.beats()) as beats:
        async for _ in beats:
            check()
            credits = snapshot()
            if last is not None and same_offer(credits, last) and clock() - sent_at < heartbeats.HEARTBEAT_S / 2:
                # Most changes concern another frontdoor.
                continue
            sent_at = clock()
            known = (credits.known_adapters, credits.rejected_adapters)
            changed = with_changes(credits, last)
            yield changed if known != told else replace(changed, known_adapters=None, rejected_adapters=())
            told, last = known, credits


def same_offer(credits: WorkerCredits, last: WorkerCredits) -> bool:
    """Return whether two messages differ at most in the progress of attempts."""

    def told(one: WorkerCredits) -> WorkerCredits:
        attempts = tuple(replace(attempt, step=0, step_count=0, orphaned=False) for attempt in one.attempts)
        return replace(one, running_count=0, queued_count=0, attempts=attempts)

    return told(credits) == told(last)


def with_changes(credits: WorkerCredits, last: WorkerCredits | None) -> WorkerCredits:
    """Return the credits with the components and speeds that differ from the last ones; with all if there are none."""
    if last is None:
        return credits
    return replace(
        credits,
        component_changes=changed_components(credits.component_changes, last.component_changes),
        all_components=False,
        tier_speeds=credits.tier_speeds if credits.tier_speeds != last.tier_speeds else (),
    )
