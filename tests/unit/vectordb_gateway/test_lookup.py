"""Lookup: a real ledger and real rules, and an index with matches from the test."""

import asyncio
import logging
import time
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from pentimento.domain.cache import CacheScope, CandidateStart, LookupAnswer, image_key, latent_keys
from pentimento.domain.embedding import Embedding, PromptEmbedding
from pentimento.domain.errors import InvalidArgument, PentimentoError, Unavailable
from pentimento.domain.generation import Donor, FromImage, FromLatent, FromNoise, NoiseForm, Start
from pentimento.policies.cache_selection import NEAREST_COUNT, SelectionRules
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.vectors import Space, VectorQuery
from services.vectordb_gateway.entries.checks import SHARED_POOL
from services.vectordb_gateway.lookup.encoder import EncoderGuard
from tests.support.gateways import scope
from tests.support.logged import said_by
from tests.support.waiting import until
from tests.unit.vectordb_gateway.said_index import (
    EMBEDDING,
    ENCODER,
    IMAGES,
    NOBODY,
    PROMPT,
    VECTOR,
    Gateway,
    candidates,
)


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("pentimento_gateway_lookups_total", {"outcome": outcome}) or 0.0


def searches_timed() -> tuple[float, float]:
    """Return the number of searches and their total seconds."""
    name = "pentimento_gateway_search_seconds"
    return REGISTRY.get_sample_value(f"{name}_count") or 0.0, REGISTRY.get_sample_value(f"{name}_sum") or 0.0


async def test_lookup_starts_from_nearest_entrys_latent(gateway: Gateway) -> None:
    entry_id = gateway.store()
    gateway.say(entry_id, similarity=0.7)

    answer = await gateway.lookup()

    assert isinstance(answer.start, FromLatent)
    donor = Donor(entry_id, answer.start.latent.digest, 0.7, 3, "r1")
    assert answer.start == FromLatent(answer.start.latent, 5, 50, 0.25, donor)
    assert answer.start.latent.key.endswith("/5")
    assert answer.text_similarity == 0.7


VARIED = SelectionRules(renoised_share=0.9, retaken_share=0.2)


async def test_lookup_of_another_seed_is_noised_again(gateway: Gateway) -> None:
    gateway.rules = VARIED
    gateway.say(gateway.store(repeat_key="one"), similarity=1.0)

    answer = await gateway.lookup(repeat_key="two")

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.resume_step, answer.start.renoised_steps, answer.start.retaken_steps) == (5, 4, 1)
    assert answer.start.saved_steps == 4


async def test_lookup_of_an_entry_s_seed_resumes_it(gateway: Gateway) -> None:
    gateway.rules = VARIED
    # More entries of one prompt than a search returns.
    others = [gateway.store(repeat_key=f"other {number}") for number in range(NEAREST_COUNT)]
    own = gateway.store(repeat_key="one")
    gateway.say(*others, own, similarity=1.0)

    answer = await gateway.lookup(repeat_key="one")

    assert isinstance(answer.start, FromLatent)
    assert (answer.start.donor.entry_id, answer.start.saved_steps) == (own, 5)


@pytest.mark.parametrize(("space", "kind"), [(Space.TEXT, FromLatent), (Space.IMAGE, FromImage)])
async def test_repeated_lookup_starts_from_the_same_entry(gateway: Gateway, space: Space, kind: type[Start]) -> None:
    gateway.rules, gateway.reopens = replace(VARIED, images=IMAGES), False
    first, nearer = gateway.store(image=True), gateway.store(image=True)
    gateway.say(first, similarity=0.7, space=space)
    before = await gateway.lookup(repeat_key="one")

    gateway.say(nearer, similarity=0.8, space=space)
    again, other = await gateway.lookup(repeat_key="one"), await gateway.lookup(repeat_key="two")
    gateway.ledger.doom([first], 0.0).result()
    gone = await gateway.lookup(repeat_key="one")

    assert isinstance(before.start, kind)
    assert again.start == before.start
    donors = [one.start.donor.entry_id for one in (again, other, gone) if isinstance(one.start, FromLatent | FromImage)]
    assert donors == [first, nearer, nearer]


async def test_lookup_among_entries_of_one_prompt_takes_the_oldest(gateway: Gateway) -> None:
    gateway.rules = VARIED
    newer, older = gateway.store(created_at=2.0), gateway.store(created_at=1.0)
    gateway.say(newer, older, similarity=1.0)

    answer = await gateway.lookup(repeat_key="one")

    assert isinstance(answer.start, FromLatent)
    assert answer.start.donor.entry_id == older


async def test_lookup_searches_each_space_and_keys_once(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(images=IMAGES)
    gateway.say(gateway.store(pool="another"), gateway.store(), similarity=0.7)
    others = scope(adapters_digest="sha256:lora")
    gateway.index.gate.clear()

    asking = asyncio.create_task(gateway.ask(scope(), scope(), others))
    await until(lambda: len(gateway.index.queries) == 3)
    gateway.index.gate.set()
    answer = await asking

    asked = {(query.space, query.tenants, query.compatibility_keys) for query, _ in gateway.index.queries}
    keys = {(Space.TEXT, latent_keys(scope())), (Space.TEXT, latent_keys(others)), (Space.IMAGE, (image_key(scope()),))}
    assert asked == {(space, ("tenant",), of) for space, of in keys}
    assert len(gateway.index.queries) == 3
    assert isinstance(answer.starts[0].start, FromLatent)
    assert answer.starts[0].text_similarity == 0.7


@pytest.mark.parametrize(
    ("stored", "asked", "start"),
    [
        pytest.param([{"pool": "another"}, {"pool": SHARED_POOL}], scope(), FromNoise, id="entries of other pools"),
        pytest.param([{"of": scope(width_px=128)}], scope(), FromNoise, id="an entry of another scope"),
        pytest.param([{"pool": SHARED_POOL}], scope(shared_pool=True), FromLatent, id="the shared pool, asked for"),
    ],
)
async def test_lookup_checks_pool_and_scope_of_each_match(
    gateway: Gateway, stored: list[dict[str, Any]], asked: CacheScope, start: type[Start]
) -> None:
    gateway.say(*(gateway.store(**entry) for entry in stored))

    assert isinstance((await gateway.lookup(asked)).start, start)


@pytest.mark.parametrize("evicted_count", [0, 3])
async def test_lookup_takes_the_nearest_live_entry(gateway: Gateway, evicted_count: int) -> None:
    nearest, next_one = gateway.store(), gateway.store()
    gateway.say(*[NOBODY] * evicted_count, nearest, next_one)

    answer = await gateway.lookup()

    assert isinstance(answer.start, FromLatent) and answer.start.donor.entry_id == nearest


@pytest.mark.parametrize(("shared", "pools"), [(False, ("tenant",)), (True, ("tenant", SHARED_POOL))])
async def test_search_is_filtered_by_the_scope(gateway: Gateway, shared: bool, pools: tuple[str, ...]) -> None:
    asked = scope(shared_pool=shared)

    await gateway.lookup(asked)

    assert gateway.index.queries == [(VectorQuery(Space.TEXT, VECTOR, pools, latent_keys(asked), 4), 5.0)]


async def test_image_serves_if_it_saves_more_steps(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(images=IMAGES)
    entry_id = gateway.store(image=True)
    gateway.say(entry_id, similarity=0.4, space=Space.IMAGE)

    answer = await gateway.lookup()

    assert isinstance(answer.start, FromImage)
    donor = Donor(entry_id, answer.start.image.digest, 0.4, 3, "r1")
    assert answer.start == FromImage(answer.start.image, 30, NoiseForm.VARIANCE_PRESERVING, donor)
    assert answer.start.image.key.endswith("/image")
    assert (answer.text_similarity, answer.image_similarity) == (None, 0.4)


async def test_candidates_with_different_adapter_steps_get_their_own_starts(gateway: Gateway) -> None:
    early, late = (scope(adapters_digest="sha256:lora", adapters_from_step=step) for step in (3, 7))
    gateway.say(gateway.store(of=late))

    starts = (await gateway.ask(early, late)).starts

    assert [type(found.start) for found in starts] == [FromNoise, FromLatent]


async def test_lookup_searches_wider_if_none_may_serve(gateway: Gateway) -> None:
    """Four plain entries are nearer, with latents of step 5, where the LoRA has been in force since step 3."""
    adapted = scope(adapters_digest="sha256:lora", adapters_from_step=3)
    plain, own = [gateway.store() for _ in range(4)], gateway.store(of=adapted)
    gateway.say(*plain, own)

    start = (await gateway.lookup(adapted)).start

    assert isinstance(start, FromLatent) and start.donor.entry_id == own
    assert [query.limit_count for query, _ in gateway.index.queries][-1] == 16


@pytest.mark.parametrize(
    ("gone_count", "limits", "start"),
    [
        pytest.param(3, [4], FromLatent, id="one of the nearest may serve"),
        pytest.param(100, [4, 16, 64], FromNoise, id="none may serve: wider twice at most"),
    ],
)
async def test_lookup_searches_wider_only_while_no_match_may_serve(
    gateway: Gateway, gone_count: int, limits: list[int], start: type[Start]
) -> None:
    gateway.say(*[NOBODY] * gone_count, gateway.store(), NOBODY)

    assert isinstance((await gateway.lookup()).start, start)
    assert [query.limit_count for query, _ in gateway.index.queries] == limits


async def test_images_alone_are_searched_where_latents_are_switched_off(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(latents=(), images=IMAGES)
    gateway.say(gateway.store(image=True), space=Space.IMAGE)

    assert isinstance((await gateway.lookup()).start, FromImage)


async def test_entry_without_an_image_gives_none(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(images=IMAGES)
    gateway.say(gateway.store(image=False), space=Space.IMAGE)

    assert (await gateway.lookup()).start == FromNoise()


async def test_lookup_without_near_entry_is_a_miss(gateway: Gateway) -> None:
    answer = await gateway.ask(scope())

    assert answer == LookupAnswer((CandidateStart(FromNoise(), "miss: no compatible entry"),))


async def test_nothing_is_searched_while_reuse_is_switched_off(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(latents=(), images=())

    answer = await gateway.ask(scope())

    assert (answer.starts[0].reason, answer.search_skipped) == ("miss: reuse is switched off", True)
    assert gateway.index.queries == []


async def test_nothing_is_searched_before_the_index_is_ready(gateway: Gateway) -> None:
    gateway.guard = EncoderGuard(gateway.ledger, gateway.index)
    gateway.guard.note_bound(EncoderBinding(ENCODER, 2))

    answer = await gateway.ask(scope())

    assert (answer.starts[0].reason, answer.search_skipped) == ("miss: the index is not ready", True)
    assert gateway.index.queries == []


async def test_slow_search_is_abandoned(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, late_s = asyncio.get_running_loop(), [0.0]
    now_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s() + late_s[0])
    gateway.timeout_s = 600.0
    gateway.say(gateway.store())
    gateway.index.gate.clear()

    asking = asyncio.create_task(gateway.ask(scope()))
    await until(lambda: bool(gateway.index.queries))
    late_s[0] = 600.0
    answer = await asyncio.wait_for(asking, 60.0)

    assert (answer.starts[0].reason, answer.search_skipped) == ("miss: search abandoned after 600000 ms", True)
    assert gateway.index.queries[0][1] == 600.0


async def test_outage_is_a_miss_and_one_log_line(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    lookup = gateway.open()
    caplog.set_level(logging.WARNING)

    async def ask(error: PentimentoError | None) -> LookupAnswer:
        gateway.index.error = error
        return await lookup.lookup(candidates(scope()), PROMPT, None)

    answers = [await ask(Unavailable("AWAY", "the index is away")) for _ in range(2)]
    lines_of_the_first = len(said_by("services.vectordb_gateway.lookup.lookup", caplog))
    await ask(None)
    await ask(Unavailable("AWAY", "the index is away"))

    assert [(answer.starts[0].reason, answer.search_skipped) for answer in answers] == [
        ("miss: the index is away", True)
    ] * 2
    assert (lines_of_the_first, len(said_by("services.vectordb_gateway.lookup.lookup", caplog))) == (1, 2)


async def test_index_refusal_is_invalid_argument(gateway: Gateway) -> None:
    gateway.index.error = InvalidArgument.of("text_embedding", "must be another")

    with pytest.raises(InvalidArgument):
        await gateway.lookup()


@pytest.mark.parametrize(
    ("of", "embedding", "quality", "named"),
    [
        (scope(tenant=""), EMBEDDING, None, "scope.tenant"),
        (scope(), replace(EMBEDDING, encoder_digest="sha256:other"), None, "encoder_digest"),
        (scope(), EMBEDDING, 1.1, "quality"),
    ],
)
async def test_bad_input_is_refused_by_name_before_any_search(
    gateway: Gateway, of: CacheScope, embedding: Embedding, quality: float | None, named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        await gateway.open().lookup(candidates(of), PromptEmbedding(embedding), quality)

    assert gateway.index.queries == []


async def test_every_outcome_has_its_metric(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(images=IMAGES)
    entry_id = gateway.store(image=True)
    outcomes = ("miss", "latent", "image", "skipped")
    before, (timed, seconds) = [counted(outcome) for outcome in outcomes], searches_timed()
    began = time.perf_counter()

    await gateway.lookup()
    gateway.say(entry_id)
    await gateway.lookup()
    gateway.say(space=Space.TEXT)
    gateway.say(entry_id, space=Space.IMAGE)
    await gateway.lookup()
    gateway.index.error = Unavailable("AWAY", "the index is away")
    await gateway.lookup()

    assert [counted(outcome) - was for outcome, was in zip(outcomes, before, strict=True)] == [1, 1, 1, 1]
    timed_now, seconds_now = searches_timed()
    assert timed_now - timed == 4
    assert 0.0 < seconds_now - seconds <= time.perf_counter() - began


async def test_waiting_lookups_do_not_block_others(gateway: Gateway) -> None:
    gateway.timeout_s = 600.0
    gateway.say(gateway.store())
    gateway.index.gate.clear()
    lookup = gateway.open()
    waiting = [asyncio.create_task(lookup.lookup(candidates(scope()), PROMPT, None)) for _ in range(40)]
    await until(lambda: len(gateway.index.queries) == 40)

    gateway.rules = SelectionRules(latents=(), images=())
    answer = await gateway.ask(scope())
    gateway.index.gate.set()

    assert answer.starts[0].reason == "miss: reuse is switched off"
    assert all(isinstance(each.starts[0].start, FromLatent) for each in await asyncio.gather(*waiting))
