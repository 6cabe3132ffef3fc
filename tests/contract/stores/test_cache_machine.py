"""Test that any history of calls gets the answers of a model in memory and leaves its rows, on SQLite and PostgreSQL.

A history has grants, commits, evictions of entries and of items, the index's marks, pins, deletions and restarts. It
empties the ledger at its end, so that all histories share one database.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lab.fixtures.clocks import SetClock
from pentimento.domain.errors import PentimentoError
from pentimento.domain.generation import ObjectReference
from pentimento.policies.cache_quota import CacheLimits, gives_way
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.cache.records import EntryCommit, ObjectPin
from tests.contract.stores.cache_model import SHARED, CacheModel
from tests.contract.stores.cache_records import commit, grant, reference

TENANTS = st.sampled_from(["a", "b"])
STEPS = st.sampled_from([(5,), (5, 10), (5, 10, 15), (5, 10, None), (None,), ()])
CAPTURED = st.sampled_from([(5,), (10,), (5, 10), (10, 10), (15,), ()])
WRONG = st.sampled_from(
    [{}] * 8
    + [{"tenant": "other"}, {"pool": "other"}, {"scope_digest": "other"}, {"request_id": "r2"}, {"fencing_token": 6}]
)
RARELY = st.sampled_from([False] * 5 + [True])
LASTING_S = st.integers(1, 25)
LATER_S = st.integers(0, 8)
NUMBERS = st.integers(0, 2)
_histories = count()


def told(call: Callable[[], "Future[Any]"]) -> object:
    """Return a call's answer, or an error's kind and reason."""
    try:
        return call().result()
    except PentimentoError as error:
        return type(error), error.reason


def expected(answer: object) -> object:
    return (type(answer), answer.reason) if isinstance(answer, PentimentoError) else answer


class CacheHistory(RuleBasedStateMachine):
    """Run a cache ledger and its model side by side. A second passes before every call."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.prefix, self.clock = url, f"h{next(_histories)}", SetClock(wall_s=1_000_000.0)
        self.ledger = open_cache_ledger(url, self.clock)
        self.model = CacheModel(self.ledger.newest_number())
        self.names: list[str] = []
        self.commits: list[EntryCommit] = []
        self.read = self.ledger.unindexed(100)
        self.round = self.model.sequence

    def teardown(self) -> None:
        self.clock.wall_s += 1e9
        self.ledger.doom(self.ledger.entry_ids(), grace_s=0).result()
        self.ledger.forget_entries(self.ledger.doomed_ids(1000)).result()
        self.ledger.expire_grants().result()
        keys = self.ledger.claim_deletion(self.ledger.deletable_keys(1000)).result()
        self.ledger.forget_objects(keys).result()
        self.ledger.close()

    def check(self, call: Callable[[], "Future[Any]"], answer: Callable[[], object]) -> None:
        self.clock.wall_s += 1.0
        assert told(call) == expected(answer())

    @property
    def now(self) -> float:
        return self.clock.wall_s

    def entry_id(self, number: int) -> str:
        return self.commits[-1 - number % len(self.commits)].entry_id if self.commits else "unknown"

    @initialize()
    def commit_some(self) -> None:
        for tenant, is_shared in (("a", False), ("b", True), ("b", False)):
            self.reserve(tenant, is_shared, (5, 10, None), 100)
            self.commit(0, (5, 10), image=tenant == "b", wrong={}, is_swapped=False)
        self.reserve("a", False, (5, 10, 15), 20)

    @rule(tenant=TENANTS, is_shared=st.booleans(), steps=STEPS, lasts_s=LASTING_S)
    def reserve(self, tenant: str, is_shared: bool, steps: tuple[int | None, ...], lasts_s: int) -> None:
        self.names.append(f"{self.prefix}-g{len(self.names)}")
        owner = {"tenant": tenant, "pool": SHARED if is_shared else tenant}
        made = replace(grant(self.names[-1], steps, self.now + lasts_s), **owner)
        self.check(lambda: self.ledger.reserve(made), lambda: self.model.reserve(made))

    @rule(number=st.integers(0, 2), steps=CAPTURED, image=st.booleans(), wrong=WRONG, is_swapped=RARELY)
    def commit(self, number: int, steps: tuple[int, ...], image: bool, wrong: dict[str, Any], is_swapped: bool) -> None:
        name = self.names[-1 - number % len(self.names)] if self.names else "unknown"
        held = self.model.grants.get(name)
        made = replace(commit(name, steps, image), created_at=self.now, ancestor_depth=len(steps))
        made = replace(made, image_vector=b"image" if image else None, repeat_key="repeat" if image else "")
        if is_swapped and made.captured.latents:
            latent = replace(made.captured.latents[0], object=reference(f"{name}/10"))
            made = replace(made, captured=replace(made.captured, latents=(latent,)))
        if held is not None:
            made = replace(made, tenant=held.tenant, pool=held.pool)
        made = replace(made, **wrong)
        self.commits.append(made)
        self.check(lambda: self.ledger.commit(made), lambda: self.model.commit(made))

    @rule(number=NUMBERS)
    def release(self, number: int) -> None:
        name = self.names[-1 - number % len(self.names)] if self.names else "unknown"
        self.check(lambda: self.ledger.release(name), lambda: self.model.release([name], self.now) == 1)

    @rule(is_at_an_end=st.booleans())
    def expire_grants(self, is_at_an_end: bool) -> None:
        ends = [grant.expires_at for grant in self.model.grants.values()] + list(self.model.pins.values())
        if is_at_an_end:
            self.clock.wall_s = min((end - 1.0 for end in ends if end > self.now), default=self.now)
        self.check(self.ledger.expire_grants, lambda: self.model.expire_grants(self.now))

    @rule(numbers=st.lists(NUMBERS, max_size=2, unique=True), grace_s=LATER_S)
    def doom(self, numbers: list[int], grace_s: int) -> None:
        names = list({self.entry_id(number) for number in numbers})
        before = self.ledger.removal_count
        self.check(lambda: self.ledger.doom(names, grace_s), lambda: self.model.doom(names, self.now + grace_s))
        assert self.ledger.removal_count == before + 1

    @rule(
        of_items=st.booleans(), entry_count=st.integers(1, 4), item_count=st.integers(1, 9), grace_s=LATER_S,
        knows_round=st.booleans(),
    )  # fmt: skip
    def evict(self, of_items: bool, entry_count: int, item_count: int, grace_s: int, knows_round: bool) -> None:
        limits, before = CacheLimits(entry_count, 10 * item_count), self.ledger.removal_count
        new_after = self.round if knows_round else None
        ours = self.ledger.evict_items if of_items else self.ledger.evict
        theirs = self.model.evict_items if of_items else self.model.evict
        self.check(
            lambda: ours(lambda held: gives_way(held, limits), grace_s, new_after),
            lambda: theirs(
                lambda held: gives_way(held, limits), self.now + grace_s, 10**9 if new_after is None else new_after
            ),
        )
        assert self.ledger.removal_count > before
        self.round = self.ledger.newest_number()

    @rule(tenant=TENANTS)
    def forget_tenant(self, tenant: str) -> None:
        self.check(lambda: self.ledger.forget_tenant(tenant), lambda: self.model.forget_tenant(tenant, self.now))

    @rule()
    def read_unindexed(self) -> None:
        self.read = self.ledger.unindexed(100)
        assert self.ledger.newest_unindexed(2) == self.read[::-1][:2]
        if self.read:
            assert self.ledger.unindexed(100, after=self.read[0].sequence) == self.read[1:]

    @rule(limit=st.sampled_from([1, 100]))
    def mark_indexed(self, limit: int) -> None:
        taken = self.read[:limit]
        self.check(lambda: self.ledger.mark_indexed(taken), lambda: self.model.mark_indexed(taken))

    @rule(number=NUMBERS)
    def mark_unindexed(self, number: int) -> None:
        name = self.entry_id(number)
        self.ledger.mark_unindexed([name]).result()
        if name in self.model.entries:
            self.model.entries[name].is_indexed = False

    @precondition(lambda self: self.commits)
    @rule(
        number=NUMBERS, tenant=TENANTS, name=st.sampled_from(["r1", "r2"]), lasts_s=LASTING_S,
        digest=st.sampled_from(["", "", "sha256:other"]),
    )  # fmt: skip
    def pin(self, number: int, tenant: str, name: str, lasts_s: int, digest: str) -> None:
        captured = self.commits[-1 - number % len(self.commits)].captured
        wanted = captured.latents[-1].object if captured.latents else captured.image or reference("none")
        wanted = ObjectReference(wanted.key, digest or wanted.digest, wanted.size_bytes)
        pin = ObjectPin(tenant, name, wanted, self.now + lasts_s)
        self.check(lambda: self.ledger.pin(pin, SHARED), lambda: self.model.pin(pin, self.now))

    @rule(tenant=TENANTS, name=st.sampled_from(["r1", "r2"]))
    def unpin(self, tenant: str, name: str) -> None:
        self.check(lambda: self.ledger.unpin(tenant, name), lambda: self.model.unpin(tenant, name))

    @rule()
    def forget_doomed_entries(self) -> None:
        names = self.ledger.doomed_ids(100)
        self.ledger.forget_entries([*names, *self.model.ids_where(lambda entry: entry.is_live)]).result()
        self.model.forget_entries(names)

    @rule(is_forgotten=st.booleans())
    def delete_objects(self, is_forgotten: bool) -> None:
        keys = [key for key, held in self.model.objects.items() if held.entry_id not in self.model.entries]
        claimed = self.ledger.claim_deletion(keys).result()
        assert set(claimed) == self.model.claim_deletion(keys, self.now)
        if is_forgotten:
            in_use = [key for key, held in self.model.objects.items() if held.delete_after is None]
            self.ledger.forget_objects([*claimed, *in_use]).result()
            for key in claimed:
                del self.model.objects[key]

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = open_cache_ledger(self.url, self.clock)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        ledger, model = self.ledger, self.model
        ids = [made.entry_id for made in self.commits]
        assert ledger.live_entries(ids) == {name: model.live_entry(name) for name in ids if model.live_entry(name)}
        assert (ledger.totals(), ledger.holdings()) == (model.totals(), model.holdings())
        assert ledger.unindexed(100) == model.unindexed()
        assert ledger.indexed_ids([*ids, "unknown"]) == set(
            model.ids_where(lambda entry: entry.is_live and entry.is_indexed)
        )
        assert sorted(ledger.doomed_ids(100)) == sorted(model.ids_where(lambda entry: not entry.is_live))
        live = model.ids_where(lambda entry: entry.is_live)
        assert ledger.live_sequences() == [model.entries[name].sequence for name in live]
        assert set(ledger.deletable_keys(100)) == model.deletable(self.now)
        assert ledger.known_keys([*model.objects, "unknown"]) == model.objects.keys()
        kept = model.kept_by_pins(self.now)
        assert set(ledger.kept_by_pins()) == kept and ledger.pinned_totals() == (len(kept), 10 * len(kept))
        assert {each.key for each in ledger.held_references()} == {
            each.reference.key for each in model.held() if each.reference
        }
        assert ledger.check_integrity() == []


@pytest.mark.parametrize("history_count", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_cache_ledger_any_history_equals_model(ledger_url: str, history_count: int) -> None:
    run_state_machine_as_test(
        lambda: CacheHistory(ledger_url),
        settings=settings(max_examples=history_count, stateful_step_count=30, deadline=None, derandomize=True),
    )
