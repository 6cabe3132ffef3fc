"""The journal's promises as a model in memory, for tests that compare a store with it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pentimento.domain.epochs import LeaseState, epoch_at
from pentimento.domain.errors import InvalidArgument, NotFound, PentimentoError, ResourceExhausted, Unavailable
from pentimento.domain.generation import Attempt, ObjectReference
from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.records import (
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
    """Each method answers as the journal's does. An error is returned."""

    lease: LeaseState
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

    def record_route(self, request_id: str, route: bytes, stage: int) -> bytes | PentimentoError:
        held = self.requests.get(request_id)
        if held is None:
            return InvalidArgument.of("request_id", "")
        if held.route is not None and held.cascade_stage >= stage:
            return held.route
        self.requests[request_id] = replace(held, route=route, cascade_stage=stage)
        return route

    def start_attempt(self, started: AttemptRecord) -> bool:
        attempt = started.attempt
        held = self.requests.get(attempt.request_id)
        if held is None or held.finished_at is not None or self._is_superseded(attempt.frontdoor_epoch):
            return False
        newest = held.newest_attempt
        if newest is not None and not _is_newer(attempt, newest.attempt):
            return (newest.attempt, newest.worker_id) == (attempt, started.worker_id)
        self.requests[attempt.request_id] = replace(
            held, state=RequestState.RUNNING, newest_attempt=started, attempt_count=held.attempt_count + 1
        )
        return True

    def route_and_start(
        self, started: AttemptRecord, route: bytes, stage: int
    ) -> tuple[bytes | PentimentoError, bool] | PentimentoError:
        if self._is_superseded(started.attempt.frontdoor_epoch):
            return route, False
        pinned = self.record_route(started.attempt.request_id, route, stage)
        return pinned if isinstance(pinned, PentimentoError) else (pinned, self.start_attempt(started))

    def commit_result(self, attempt: Attempt, result: ResultRecord) -> bool:
        held = self.requests.get(attempt.request_id)
        newest = held.newest_attempt.attempt.fencing_token if held and held.newest_attempt else 0
        if held is None or newest != attempt.fencing_token:
            return False
        is_repeated = held.result is not None and held.result.image.digest == result.image.digest
        if held.finished_at is not None and not is_repeated:
            return False
        self.requests[attempt.request_id] = replace(
            _without_body(held), state=RequestState.COMPLETED, result=result, finished_at=result.completed_at
        )
        return True

    def finish(self, request_id: str, state: RequestState, epoch: int, free_keys_of: Sequence[str], now: float) -> bool:
        held = self.requests.get(request_id)
        if held is None or held.finished_at is not None or self._is_superseded(epoch):
            return False
        self.requests[request_id] = replace(
            _without_body(held), state=state, error_reason="REASON", error_message="words", finished_at=now
        )
        for freed_id in free_keys_of:
            if (freed := self.requests.get(freed_id)) is not None:
                self.requests[freed_id] = replace(freed, request=replace(freed.request, idempotency_key=""))
        return True

    def forget_finished(
        self, before: float, limit: int, tenant: str, after: float, now: float
    ) -> list[JournalledRequest]:
        gone = [
            held
            for held in self.of_tenant(tenant)
            if held.finished_at is not None and after < held.finished_at < before
            if not self._is_pinned(held.request.request_id, now)
        ]
        gone = sorted(gone, key=lambda held: held.finished_at or 0.0)[:limit]
        for held in gone:
            self.pins.pop(held.request.request_id, None)
            del self.requests[held.request.request_id]
        return gone

    def forget_pictures(self, tenant: str, size_bytes: int) -> list[ObjectReference]:
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

    def pin(self, wanted: PicturePin, most_bytes: int, now: float) -> PicturePin | PentimentoError | None:
        held = self.requests.get(wanted.request_id)
        if held is None or held.request.tenant != wanted.tenant:
            return NotFound.of("UNKNOWN_REQUEST", "request_id", "")
        former = self.found_pin(wanted.tenant, wanted.request_id, now)
        others = self.pinned_bytes(wanted.tenant, now) - (former.size_bytes if former else 0)
        if others + wanted.size_bytes > most_bytes:
            return ResourceExhausted("QUOTA_EXCEEDED", "", metadata={"quota": "tenant-pinned-bytes"})
        self.pins[wanted.request_id] = wanted
        return former

    def unpin(self, tenant: str, request_id: str) -> bool:
        pin = self.pins.get(request_id)
        if pin is None or pin.tenant != tenant:
            return False
        del self.pins[request_id]
        return True

    def found_pin(self, tenant: str, request_id: str, now: float) -> PicturePin | None:
        pin = self.pins.get(request_id)
        return pin if pin is not None and pin.tenant == tenant and pin.expires_at > now else None

    def pinned_bytes(self, tenant: str, now: float) -> int:
        return sum(pin.size_bytes for pin in self.pins.values() if pin.tenant == tenant and pin.expires_at > now)

    def named(self, now: float) -> set[str]:
        images = {held.result.image.key for held in self.requests.values() if held.result is not None}
        pins = [pin for pin in self.pins.values() if pin.expires_at > now]
        return (images | {part.object.key for pin in pins for part in pin.inputs}) - {""}

    def kept(self, tenant: str) -> list[KeptResults]:
        ended = [held for held in self.of_tenant(tenant) if held.finished_at is not None]
        images = [held.result.image for held in ended if held.result is not None and held.result.image.key]
        return [KeptResults(tenant, len(ended), sum(image.size_bytes for image in images))] if ended else []

    def of_tenant(self, tenant: str) -> list[JournalledRequest]:
        return [held for held in self.requests.values() if held.request.tenant == tenant]

    def claim(self, wall_s: float) -> int:
        self.lease = LeaseState(max(epoch_at(wall_s), self.lease.epoch + 1), 0)
        return self.lease.epoch

    def beat(self, epoch: int) -> bool:
        if epoch != self.lease.epoch:
            return False
        self.lease = LeaseState(epoch, self.lease.beat + 1)
        return True

    def take_over(self, seen: LeaseState, wall_s: float) -> int | None:
        return self.claim(wall_s) if seen == self.lease else None

    def _is_superseded(self, epoch: int) -> bool:
        return 0 < epoch < self.lease.epoch

    def _is_pinned(self, request_id: str, now: float) -> bool:
        return request_id in self.pins and self.pins[request_id].expires_at > now

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
