"""What a lookup tells the match predictor: whether it was searched for, and the share of the steps that it saved."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.match_prediction import Ruling
from pentimento.policies.selector_profiles import SelectorProfiles
from pentimento.stores.ledger.cache_ledger import open_cache_ledger
from pentimento.stores.ledger.cache_records import EncoderBinding
from pentimento.stores.vectors.index import Space
from services.vectordb_gateway.match_predictor.match_watch import Forecast, MatchWatch
from services.vectordb_gateway.settings import MatchPredictorSettings
from services.vectordb_gateway.store_threads import StoreThreads
from tests.gateways import scope
from tests.selector_profiles import LATENT_PROFILE
from tests.unit.vectordb_gateway.said_index import ENCODER, VECTOR, AwaitedIndex, Gateway, SaidIndex


class ToldWatch(MatchWatch):
    """Keeps what it is told; `wants` more of each lookup or does not."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway.ledger, MatchPredictorSettings())
        self.wants = False
        self.forecasts: list[Forecast] = []
        self.shares: list[float] = []
        self.studied: list[float] = []

    def forecast(self, pools: tuple[str, ...], vector: bytes) -> Forecast:
        self.forecasts.append(super().forecast(pools, vector))
        return self.forecasts[-1]

    def note_search(self, forecast: Forecast, search_s: float, saved_share: float) -> None:
        self.shares.append(saved_share)

    def wants_to_study(self, forecast: Forecast) -> bool:
        return self.wants

    def study(self, forecast: Forecast, saved_share: float) -> None:
        self.studied.append(saved_share)


@pytest.fixture(params=[SaidIndex, AwaitedIndex])
def gateway(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """By a thread that waits for the index, and by awaiting it."""
    ledger = open_cache_ledger(f"sqlite:///{tmp_path}/ledger.sqlite")
    ledger.bind_encoder(EncoderBinding(ENCODER, 2)).result()
    made = Gateway(ledger, request.param())
    made.watch = ToldWatch(made)
    made.guard.open()
    yield made
    made.close()
    ledger.close()


def told(gateway: Gateway) -> ToldWatch:
    assert isinstance(gateway.watch, ToldWatch)
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


async def test_a_lookup_that_can_reuse_nothing_is_neither_forecast_nor_learnt_from(gateway: Gateway) -> None:
    gateway.rules, gateway.profiles = (
        SelectionRules(latents=(), images=()),
        SelectorProfiles((LATENT_PROFILE,)),
    )  # of another model

    await gateway.lookup()

    assert (told(gateway).forecasts, told(gateway).shares) == ([], [])


@pytest.mark.parametrize("wants", [True, False])
async def test_the_predictor_studies_what_it_wants_to(
    gateway: Gateway, wants: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreThreads, "submit", lambda threads, call: call())  # before the answer: nothing to wait for
    told(gateway).wants = wants

    await gateway.lookup()

    assert told(gateway).studied == [0.0] * wants
