"""Lookup and the match predictor: forecasts, and the share of the steps that a search saved."""

import random
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pentimento.domain.embedding import Space
from pentimento.domain.generation import FromNoise
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.match_prediction import Ruling
from pentimento.profiles.catalogue import ProfileSet
from pentimento.stores.ledger.cache.ledger import open_cache_ledger
from pentimento.stores.ledger.cache.records import EncoderBinding
from pentimento.stores.vectors.index import VectorMatch, VectorQuery
from services.vectordb_gateway.lookup import lookup
from services.vectordb_gateway.match_predictor.match_watch import Forecast, MatchWatch
from services.vectordb_gateway.upkeep.store_calls import StoreThreads
from tests.contract.stores.cache_records import bind
from tests.support.gateways import scope
from tests.support.profiles import LATENT_PROFILE
from tests.unit.vectordb_gateway.said_index import ENCODER, PROMPT, VECTOR, Gateway, SaidIndex, candidates


class RecordingWatch(MatchWatch):
    """Record lookups and their outcomes; `wants` decides whether it studies each lookup."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.ledger)
        self.wants, self.ruling = False, Ruling.SEARCH
        self.forecasts: list[Forecast] = []
        self.shares: list[float] = []
        self.seconds: list[float] = []
        self.studied: list[float] = []
        self.slow = False
        self.scored_by: list[str] = []

    @property
    def scores_slowly(self) -> bool:
        return self.slow

    def forecast(self, pools: tuple[str, ...], vector: bytes) -> Forecast:
        self.scored_by.append(threading.current_thread().name)
        self.forecasts.append(replace(super().forecast(pools, vector), ruling=self.ruling))
        return self.forecasts[-1]

    def note_search(self, forecast: Forecast, search_s: float, saved_share: float) -> None:
        self.shares.append(saved_share)
        self.seconds.append(search_s)

    def wants_to_study(self, forecast: Forecast) -> bool:
        return self.wants

    def study(self, forecast: Forecast, saved_share: float) -> None:
        self.studied.append(saved_share)


@pytest.fixture
def gateway(gateway: Gateway) -> Gateway:
    gateway.watch = RecordingWatch(gateway)
    return gateway


def told(gateway: Gateway) -> RecordingWatch:
    assert isinstance(gateway.watch, RecordingWatch)
    return gateway.watch


async def test_a_latent_saves_the_steps_up_to_it(gateway: Gateway) -> None:
    gateway.say(gateway.store())

    await gateway.lookup(scope(num_inference_steps=50))

    assert told(gateway).shares == [5 / 50]


async def test_an_image_saves_the_steps_before_it_is_refined(gateway: Gateway) -> None:
    gateway.rules = SelectionRules(latents=(), images=(Threshold(0.3, 0.6),))
    gateway.say(gateway.store(image=True), similarity=0.4, space=Space.IMAGE)

    await gateway.lookup(scope(num_inference_steps=50))

    assert told(gateway).shares == [30 / 50]


async def test_a_miss_saves_nothing(gateway: Gateway) -> None:
    await gateway.lookup()

    assert told(gateway).shares == [0.0]


async def test_the_best_of_several_candidates_counts(gateway: Gateway) -> None:
    gateway.say(gateway.store())

    await gateway.ask(scope(model_digest="sha256:light"), scope(num_inference_steps=50))

    assert told(gateway).shares == [5 / 50]


async def test_a_lookup_that_could_reuse_something_is_forecast_once(gateway: Gateway) -> None:
    await gateway.ask(scope(), scope(model_digest="sha256:light"))

    assert told(gateway).forecasts == [Forecast(Ruling.SEARCH, None, ("tenant",), VECTOR)]


async def test_lookup_without_rules_is_neither_forecast_nor_learnt(gateway: Gateway) -> None:
    gateway.rules, gateway.profiles = (
        SelectionRules(latents=(), images=()),
        ProfileSet((LATENT_PROFILE,)),
    )  # profiles of another model

    await gateway.lookup()

    assert (told(gateway).forecasts, told(gateway).shares) == ([], [])


@pytest.mark.parametrize("wants", [True, False])
async def test_predictor_studies_wanted_lookups(gateway: Gateway, wants: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreThreads, "submit", lambda threads, call: call())  # before the answer: nothing to wait for
    told(gateway).wants = wants

    await gateway.lookup()

    assert told(gateway).studied == [0.0] * wants


async def test_skipped_lookup_is_neither_searched_nor_learnt(gateway: Gateway) -> None:
    gateway.say(gateway.store())
    told(gateway).ruling = Ruling.SKIP

    answer = await gateway.ask(scope())

    assert (answer.search_skipped, answer.starts[0].reason) == (True, "miss: no near entry is likely")
    assert (gateway.index.queries, told(gateway).shares) == ([], [])


class SlowIndex(SaidIndex):
    """An index that takes a quarter of a second by its clock."""

    now_s = 1000.0

    async def search(self, query: VectorQuery, timeout_s: float) -> list[VectorMatch]:
        self.now_s += 0.25
        return await super().search(query, timeout_s)


async def test_predictor_learns_the_seconds_of_a_search(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.index = index = SlowIndex()
    monkeypatch.setattr(lookup, "time", SimpleNamespace(perf_counter=lambda: index.now_s))

    await gateway.lookup()

    assert told(gateway).seconds == [0.25]


@pytest.mark.parametrize("slow", [False, True])
async def test_slow_forecast_is_made_by_a_thread(gateway: Gateway, slow: bool) -> None:
    told(gateway).slow = slow

    await gateway.lookup()

    (name,) = told(gateway).scored_by
    assert name.startswith("search") is slow


@pytest.mark.parametrize(("share", "draw", "searched"), [(0.0, 0.0, True), (0.25, 0.24, False), (0.25, 0.25, True)])
async def test_scratch_share_decides_which_lookups_are_searched(
    gateway: Gateway, share: float, draw: float, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.scratch_share = share
    monkeypatch.setattr(random, "random", lambda: draw)

    answer = await gateway.ask(scope())

    assert answer.search_skipped is not searched
    assert bool(gateway.index.queries) is searched


async def test_rows_in_memory_are_read_without_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    bind(ledger, EncoderBinding(ENCODER, 2))
    gateway = Gateway(ledger)
    gateway.row_age_s = 3600.0
    gateway.guard.open()
    gateway.say(gateway.store())
    handed_over: list[object] = []
    run = StoreThreads.run

    async def noted(threads: StoreThreads, call: object, *args: object) -> object:
        handed_over.append(call)
        return await run(threads, call, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StoreThreads, "run", noted)
    opened = gateway.open()
    starts = []
    for _ in range(2):
        starts.append((await opened.lookup(candidates(scope()), PROMPT, None)).starts[0].start)
    gateway.close()
    ledger.close()

    assert starts[0] == starts[1] != FromNoise()
    assert len(handed_over) == 1


async def test_lookup_during_a_hanging_read_gives_its_reason(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = gateway.open()
    monkeypatch.setattr(StoreThreads, "stuck_s", 7.0)
    gateway.say(gateway.store())

    answer = await opened.lookup(candidates(scope()), PROMPT, None)

    assert answer.starts[0].reason == "miss: search cannot be reached: a call has not returned for 7 s"
