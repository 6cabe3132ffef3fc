"""Model the journal's promises in memory, for comparison with a store."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pentimento.domain.clock import Clock, LeaseState, epoch_at
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError, ResourceExhausted, Unavailable
from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger.journal.records import (
    AcceptedRequest,
    AcceptKind,
    AcceptOutcome,
    AttemptRecord,
    JournalledRequest,
    KeptResults,
    PicturePin,
    ResultRecord,
)


@dataclass
class JournalModel:
    """Answer each method as the journal's method of that name does. An error is returned."""

    clock: Clock
    epochs: list[int]
    beat_count: int = 0
    requests: dict[str, JournalledRequest] = field(default_factory=dict)
    pins: dict[str, PicturePin] = field(default_factory=dict)

    def accept(self, record: AcceptedRequest) -> AcceptOutcome | PentimentoError:
        if self._is_superseded(record.frontdoor_epoch):
            return Unavailable("SUPERSEDED", "", retry_after_ms=1000)
        if (held := self._holder(record)) is not None:
            return self._outcome(held, record.tenant, record.body_hash)
        self.requests[record.request_id] = JournalledRequest(
            record, RequestState.ACCEPTED, None, None, 0, None, "", "", None, cascade_stage=0
        )
        return AcceptOutcome(AcceptKind.NEW, record.request_id, RequestState.ACCEPTED)

    def find_key(self, tenant: str, key: str, body_hash: str) -> AcceptOutcome | None:
        held = self._of_key(tenant, key)
        return None if held is None else self._outcome(held, tenant, body_hash)

    def start_attempt(self, attempt: Attempt, worker_id: str, stage: int, handed: bytes) -> bool:
        held = self.requests.get(attempt.request_id)
        if held is None or held.finished_at is not None or self._is_superseded(attempt.frontdoor_epoch):
            return False
        newest = held.newest_attempt
        if newest is not None and not _is_newer(attempt, newest.attempt):
            return (newest.attempt, newest.worker_id) == (attempt, worker_id)
        self.requests[attempt.request_id] = replace(
            held,
            state=RequestState.RUNNING,
            newest_attempt=AttemptRecord(attempt, worker_id, self.clock.wall(), stage, handed),
            attempt_count=held.attempt_count + 1,
        )
        return True

    def route_and_start(
        self, attempt: Attempt, worker_id: str, route: bytes, stage: int, handed: bytes
    ) -> tuple[bytes, bool] | PentimentoError:
        if self._is_superseded(attempt.frontdoor_epoch):
            return route, False
        held = self.requests.get(attempt.request_id)
        if held is None:
            return InvalidArgument.of("request_id", "")
        pinned = held.route if held.cascade_stage >= stage else None
        if pinned is None:
            pinned = route
            self.requests[attempt.request_id] = replace(held, route=route, cascade_stage=stage)
        return pinned, self.start_attempt(attempt, worker_id, stage, handed)

    def commit_result(self, attempt: Attempt, result: ResultRecord) -> bool:
        held = self.requests.get(attempt.request_id)
        newest = held.newest_attempt.attempt.fencing_token if held and held.newest_attempt else 0
        if held is None or newest != attempt.fencing_token:
            return False
        is_repeated = held.result is not None and held.result.image.key == result.image.key
        if held.finished_at is not None and not is_repeated:
            return False
        self.requests[attempt.request_id] = replace(
            _without_body(held), state=RequestState.COMPLETED, result=result, finished_at=result.completed_at
        )
        return True

    def finish(
        self, request_id: str, state: RequestState, reason: str, message: str, epoch: int, free_keys_of: Sequence[str]
    ) -> bool:
        held = self.requests.get(request_id)
        if held is None or held.finished_at is not None or self._is_superseded(epoch):
            return False
        self.requests[request_id] = replace(
            _without_body(held),
            state=state,
            error_reason=reason,
            error_message=message,
            finished_at=self.clock.wall(),
        )
        for freed_id in free_keys_of:
            if (freed := self.requests.get(freed_id)) is not None:
                self.requests[freed_id] = replace(freed, request=replace(freed.request, idempotency_key=""))
        return True

    def forget_finished(self, before: float, limit: int, tenant: str, after: float) -> list[JournalledRequest]:
        gone = [
            held
            for held in self.of_tenant(tenant)
            if held.finished_at is not None and after < held.finished_at < before
            if self.pins_find(tenant, held.request.request_id) is None
        ]
        gone = sorted(gone, key=lambda held: held.finished_at or 0.0)[:limit]
        for held in gone:
            self.pins.pop(held.request.request_id, None)
            del self.requests[held.request.request_id]
        return gone

    def objects_forget_pictures(self, tenant: str, size_bytes: int) -> list[ObjectReference]:
        forgotten: list[ObjectReference] = []
        for held in sorted(self.of_tenant(tenant), key=lambda held: held.finished_at or 0.0):
            if held.result is None or not held.result.image.key:
                continue
            if sum(reference.size_bytes for reference in forgotten) >= size_bytes:
                break
            forgotten.append(held.result.image)
            bare = replace(held.result, image=replace(held.result.image, key=""))
            self.requests[held.request.request_id] = replace(held, result=bare)
        return forgotten

    def pins_pin(self, wanted: PicturePin, most_bytes: int) -> PicturePin | PentimentoError | None:
        held = self.requests.get(wanted.request_id)
        if held is None or held.request.tenant != wanted.tenant:
            return NotFound.of("UNKNOWN_REQUEST", "request_id", "")
        former = self.pins_find(wanted.tenant, wanted.request_id)
        others = self.pins_pinned_bytes(wanted.tenant) - (former.size_bytes if former else 0)
        if others + wanted.size_bytes > most_bytes:
            return ResourceExhausted("QUOTA_EXCEEDED", "", metadata={"quota": "tenant-input-bytes"})
        self.pins[wanted.request_id] = wanted
        return former

    def pins_unpin(self, tenant: str, request_id: str) -> bool:
        pin = self.pins.get(request_id)
        if pin is None or pin.tenant != tenant:
            return False
        del self.pins[request_id]
        return True

    def pins_find(self, tenant: str, request_id: str) -> PicturePin | None:
        pin = self.pins.get(request_id)
        return pin if pin is not None and pin.tenant == tenant and pin.expires_at > self.clock.wall() else None

    def pins_pinned_bytes(self, tenant: str) -> int:
        return sum(pin.size_bytes for pin in self.pins.values() if self.pins_find(tenant, pin.request_id) is not None)

    def objects_named(self, keys: Sequence[str]) -> set[str]:
        images = {held.result.image.key for held in self.requests.values() if held.result is not None}
        pins = [pin for pin in self.pins.values() if pin.expires_at > self.clock.wall()]
        return {*keys} & ((images | {part.object.key for pin in pins for part in pin.inputs}) - {""})

    def listing_page(
        self, tenant: str, states: frozenset[RequestState], jobs_only: bool, limit: int
    ) -> list[JournalledRequest]:
        held = [
            each
            for each in self.of_tenant(tenant)
            if (not states or each.state in states) and (each.request.detached or not jobs_only)
        ]
        return sorted(held, key=lambda each: (each.request.accepted_at, each.request.request_id), reverse=True)[:limit]

    def get(self, request_id: str, tenant: str) -> JournalledRequest | None:
        held = self.requests.get(request_id)
        return held if held is not None and held.request.tenant == tenant else None

    def kept(self, tenant: str) -> list[KeptResults]:
        ended = [held for held in self.of_tenant(tenant) if held.finished_at is not None]
        images = [held.result.image for held in ended if held.result is not None and held.result.image.key]
        return [KeptResults(tenant, len(ended), sum(image.size_bytes for image in images))] if ended else []

    def of_tenant(self, tenant: str) -> list[JournalledRequest]:
        return [held for held in self.requests.values() if held.request.tenant == tenant]

    def lease(self) -> LeaseState:
        return LeaseState(self.epochs[-1], self.beat_count)

    def claim_epoch(self, holder_id: str) -> int:
        self.epochs.append(max(epoch_at(self.clock.wall()), self.epochs[-1] + 1))
        self.beat_count = 0
        return self.epochs[-1]

    def beat(self, epoch: int) -> bool:
        self.beat_count += epoch == self.epochs[-1]
        return epoch == self.epochs[-1]

    def take_over(self, holder_id: str, seen: LeaseState) -> int | None:
        return self.claim_epoch(holder_id) if seen == self.lease() else None

    def _is_superseded(self, epoch: int) -> bool:
        return 0 < epoch < self.epochs[-1]

    def _holder(self, record: AcceptedRequest) -> JournalledRequest | None:
        if record.idempotency_key:
            return self._of_key(record.tenant, record.idempotency_key)
        return self.requests.get(record.request_id)

    def _of_key(self, tenant: str, key: str) -> JournalledRequest | None:
        return next((held for held in self.of_tenant(tenant) if held.request.idempotency_key == key), None)

    @staticmethod
    def _outcome(held: JournalledRequest, tenant: str, body_hash: str) -> AcceptOutcome:
        is_same = (held.request.body_hash, held.request.tenant) == (body_hash, tenant)
        kind = AcceptKind.EXISTING if is_same else AcceptKind.BODY_DIFFERS
        return AcceptOutcome(kind, held.request.request_id, held.state)


def _is_newer(attempt: Attempt, newest: Attempt) -> bool:
    return attempt.fencing_token > newest.fencing_token and attempt.frontdoor_epoch >= newest.frontdoor_epoch


def _without_body(held: JournalledRequest) -> JournalledRequest:
    return replace(held, request=replace(held.request, body=b""))
