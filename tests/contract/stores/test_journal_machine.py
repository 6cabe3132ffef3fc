"""Test that any history of calls gets the answers of a model in memory and leaves its requests, on SQLite and
PostgreSQL.

A history has accepts with and without idempotency keys, routes, attempts, results, ends, pins, forgetting, epochs and
restarts. Its ids and tenants are its own, so that all histories share one database.
"""

from itertools import count
from operator import attrgetter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import Attempt, ObjectReference, SpecInput
from pentimento.domain.jobs import RequestState
from pentimento.stores.ledger import open_journal
from pentimento.stores.ledger.journal.records import AcceptedRequest, PicturePin, ResultRecord
from tests.contract.stores.journal_model import JournalModel

IDS = st.integers(0, 2)
TENANTS = st.sampled_from(["a", "b"])
ENDS = st.sampled_from([RequestState.FAILED, RequestState.CANCELLED, RequestState.EXPIRED])
# Offsets from the newest token: the same, the next, the previous.
TOKENS = st.sampled_from([0, 0, 1, 1, -1])
WORKERS, HANDED = st.sampled_from(["w1", "w2"]), st.sampled_from([b"", b"light"])
STATES = st.frozensets(st.sampled_from(RequestState), max_size=2)
# No epoch, the previous one, the newest one.
EPOCHS = st.sampled_from([0, 0, 1, 1, 1, 2])
_histories = count()


def told(outcome: object) -> object:
    """Return an outcome, or the parts of an error that a caller uses."""
    if not isinstance(outcome, PentimentoError):
        return outcome
    fields = [violation.field for violation in outcome.violations]
    return type(outcome), outcome.reason, outcome.retry_after_ms, outcome.metadata, fields


class JournalHistory(RuleBasedStateMachine):
    """Run a journal and its model side by side. A second passes before every call."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.prefix, self.clock = url, f"h{next(_histories)}", SetClock(wall_s=1_000_000.0)
        self.journal = open_journal(url, self.clock)
        self.model = JournalModel(self.clock, [self.journal.claim_epoch("first").result()])
        self.seen = self.model.lease()
        self.results = count()

    def teardown(self) -> None:
        for held in self.journal.unfinished().result():
            self.journal.finish(held.request.request_id, RequestState.CANCELLED, "", "").result()
        self.journal.close()

    def both(self, path: str, *arguments: object) -> None:
        """Call the journal and its model, and require equal answers."""
        self.clock.wall_s += 1.0
        try:
            answer = attrgetter(path)(self.journal)(*arguments).result()
        except PentimentoError as error:
            answer = error
        assert told(answer) == told(getattr(self.model, path.replace(".", "_"))(*arguments))

    @property
    def ids(self) -> list[str]:
        return [f"{self.prefix}-r{number}" for number in range(3)]

    def tenant(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def epoch(self, back: int) -> int:
        return 0 if back == 0 else self.model.epochs[max(0, len(self.model.epochs) - back)]

    def attempt(self, number: int, token: int, back: int) -> Attempt:
        held = self.model.requests.get(self.ids[number])
        newest = held.newest_attempt.attempt.fencing_token if held and held.newest_attempt else 2
        tenant = held.request.tenant if held else self.tenant("a")
        return Attempt(self.ids[number], 1, newest + token, "frontdoor", self.epoch(back), tenant)

    @initialize()
    def accept_some(self) -> None:
        for number, tenant in enumerate("aab"):
            self.accept(number, tenant, "k" * (number == 1), "x", 1)

    @rule(number=IDS, tenant=TENANTS, key=st.sampled_from(["", "k"]), body_hash=st.sampled_from("xy"), back=EPOCHS)
    def accept(self, number: int, tenant: str, key: str, body_hash: str, back: int) -> None:
        name = self.ids[number]
        if name in self.model.requests and key:
            # A frontdoor draws a new id for each call with a key.
            name = f"{name}-other"
            if name in self.model.requests:
                return
        record = AcceptedRequest(
            name,
            self.tenant(tenant),
            b"\x00body",
            body_hash,
            accepted_at=self.clock.wall_s,
            idempotency_key=key,
            deadline_at=self.clock.wall_s + 60.0 if number % 2 else None,
            frontdoor_id="frontdoor",
            frontdoor_epoch=self.epoch(back),
            body_format=number,
            detached=number == 2,
        )
        self.both("accept", record)

    @rule(tenant=TENANTS, key=st.sampled_from(["k", "other"]), body_hash=st.sampled_from("xy"))
    def find_key(self, tenant: str, key: str, body_hash: str) -> None:
        self.both("find_key", self.tenant(tenant), key, body_hash)

    @rule(number=IDS, tenant=TENANTS, is_other=st.booleans())
    def get(self, number: int, tenant: str, is_other: bool) -> None:
        self.both("get", self.ids[number] + "-other" * is_other, self.tenant(tenant))

    @rule(number=IDS, token=TOKENS, back=EPOCHS, worker=WORKERS, stage=st.integers(0, 1), handed=HANDED)
    def start_attempt(self, number: int, token: int, back: int, worker: str, stage: int, handed: bytes) -> None:
        self.both("start_attempt", self.attempt(number, token, back), worker, stage, handed)

    @rule(number=IDS, token=TOKENS, back=EPOCHS, worker=WORKERS, route=st.binary(max_size=2), stage=st.integers(0, 2))
    def route_and_start(self, number: int, token: int, back: int, worker: str, route: bytes, stage: int) -> None:
        self.both("route_and_start", self.attempt(number, token, back), worker, route, stage, b"light")

    @rule(number=IDS, token=TOKENS, back=EPOCHS, content=st.sampled_from("ppq"))
    def commit_result(self, number: int, token: int, back: int, content: str) -> None:
        image = ObjectReference(f"{self.prefix}/{next(self.results)}", f"sha256:{content}", 10)
        result = ResultRecord(image, "png", 64, 48, b"\x00provenance", self.clock.wall_s + 0.5)
        self.both("commit_result", self.attempt(number, token, back), result)

    @rule(number=IDS, state=ENDS, back=EPOCHS, freed=st.lists(IDS, max_size=3))
    def finish(self, number: int, state: RequestState, back: int, freed: list[int]) -> None:
        keys = [self.ids[one] for one in freed]
        self.both("finish", self.ids[number], state, "REASON", "words", self.epoch(back), keys)

    @rule(number=IDS, tenant=TENANTS, lasts_s=st.integers(0, 20), size=st.sampled_from([40, 60, 61]))
    def pin(self, number: int, tenant: str, lasts_s: int, size: int) -> None:
        inputs = (SpecInput("init_image", ObjectReference(f"{self.prefix}/input{number}", "sha256:i", 7)),)
        ends_at = self.clock.wall_s + 1.0 + lasts_s
        self.both("pins.pin", PicturePin(self.ids[number], self.tenant(tenant), ends_at, size, inputs), 100)

    @rule(number=IDS, tenant=TENANTS)
    def unpin(self, number: int, tenant: str) -> None:
        self.both("pins.unpin", self.tenant(tenant), self.ids[number])

    @rule(tenant=TENANTS, limit=st.sampled_from([1, 10]), is_before=st.booleans(), is_after=st.booleans())
    def forget_finished(self, tenant: str, limit: int, is_before: bool, is_after: bool) -> None:
        ends = [held.finished_at for held in self.model.of_tenant(self.tenant(tenant)) if held.finished_at is not None]
        before, after = max(ends, default=0.0) + 1.0 - is_before, min(ends, default=0.0) - 1.0 + is_after
        self.both("forget_finished", before, limit, self.tenant(tenant), after)

    @rule(tenant=TENANTS, size=st.sampled_from([0, 10, 11, 1000]))
    def forget_images(self, tenant: str, size: int) -> None:
        self.both("objects.forget_pictures", self.tenant(tenant), size)

    @rule()
    def look_for_keys(self) -> None:
        keys = [f"{self.prefix}/input{number}" for number in range(3)]
        keys += [held.result.image.key for held in self.model.requests.values() if held.result is not None]
        self.both("objects.named", [*keys, "unknown"])

    @rule(tenant=TENANTS, states=STATES, jobs_only=st.booleans())
    def list_page(self, tenant: str, states: frozenset[RequestState], jobs_only: bool) -> None:
        self.both("listing.page", self.tenant(tenant), states, jobs_only, 3)

    @rule()
    def claim_epoch(self) -> None:
        self.both("claim_epoch", "next")

    @rule(back=st.integers(1, 2))
    def beat(self, back: int) -> None:
        self.both("beat", self.epoch(back))

    @rule()
    def look_at_lease(self) -> None:
        self.seen = self.model.lease()
        self.both("lease")

    @rule()
    def take_over(self) -> None:
        self.both("take_over", "standby", self.seen)

    @rule()
    def reopen(self) -> None:
        self.journal.close()
        self.journal = open_journal(self.url, self.clock)

    @rule(tenant=TENANTS)
    def look_at_tenant(self, tenant: str) -> None:
        name = self.tenant(tenant)
        kept = {each.tenant: [each] for each in self.journal.objects.kept().result()}
        assert kept.get(name, []) == self.model.kept(name)
        known = {held.request.request_id for held in self.model.of_tenant(name)}
        assert self.journal.known([*self.ids, *(f"{each}-other" for each in self.ids)], name).result() == known
        assert self.journal.has_requests(name).result() == bool(known)
        self.both("pins.pinned_bytes", name)
        for request_id in self.ids:
            self.both("pins.find", name, request_id)

    @invariant()
    def requests_are_those_of_the_model(self) -> None:
        open_ones = [held for held in self.model.requests.values() if held.finished_at is None]
        assert self.journal.unfinished().result() == sorted(open_ones, key=lambda held: held.request.accepted_at)
        for tenant in (self.tenant("a"), self.tenant("b")):
            found = self.journal.listing.page(tenant, frozenset(), False, 20).result()
            assert found == self.model.listing_page(tenant, frozenset(), False, 20)


@pytest.mark.parametrize("history_count", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_journal_any_history_equals_model(ledger_url: str, history_count: int) -> None:
    run_state_machine_as_test(
        lambda: JournalHistory(ledger_url),
        settings=settings(max_examples=history_count, stateful_step_count=30, deadline=None, derandomize=True),
    )
