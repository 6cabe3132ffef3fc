"""Look up by selector profiles: one per model, none without, and the bound on generations of reuse."""

import pytest

from pentimento.domain.generation import FromLatent, FromNoise
from pentimento.policies.cache_selection import SelectionRules
from pentimento.profiles.catalogue import ProfileSet
from services.vectordb_gateway.lookup import search
from tests.support.gateways import scope
from tests.support.profiles import LATENT_PROFILE, changed, reuse_step
from tests.unit.vectordb_gateway.said_index import ENCODER, Gateway

PROFILE = changed(
    LATENT_PROFILE,
    model_digest="sha256:model",
    reference_digest="sha256:model",
    encoder_digest=ENCODER,
    rows=(reuse_step(5, 80, 0.9, 0.8, 0.7),),
)


@pytest.fixture
def gateway(gateway: Gateway) -> Gateway:
    gateway.rules = SelectionRules(latents=(), images=())
    gateway.profiles = ProfileSet((PROFILE,))
    return gateway


async def test_model_without_a_profile_reuses_nothing(gateway: Gateway) -> None:
    other = scope(model_digest="sha256:other")
    gateway.say(gateway.store(of=other), similarity=1.0)

    answer = await gateway.lookup(other)

    assert (answer.start, answer.reason) == (FromNoise(), "miss: no selector profile of this model")
    assert gateway.index.queries == []


async def test_candidates_are_each_decided_by_their_own(gateway: Gateway) -> None:
    gateway.say(gateway.store(), similarity=1.0)

    answer = await gateway.ask(scope(), scope(model_digest="sha256:other"))

    assert [type(found.start) for found in answer.starts] == [FromLatent, FromNoise]


async def test_quality_above_the_profile_is_generated_from_noise(gateway: Gateway) -> None:
    gateway.say(gateway.store(), similarity=1.0)

    answer = await gateway.lookup(quality=0.95)

    assert answer.start == FromNoise()
    assert "0.95 asked for, thresholds profiled for 0.90" in answer.reason


@pytest.mark.parametrize(("bound", "starts"), [(4, FromLatent), (3, FromNoise)])
async def test_last_image_of_a_chain_is_not_reused(
    gateway: Gateway, bound: int, starts: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_ANCESTOR_DEPTH", bound)
    # Its depth is 3: an image from it would be the fourth.
    gateway.say(gateway.store(), similarity=1.0)

    assert isinstance((await gateway.lookup()).start, starts)


async def test_reason_leaves_out_a_plan_without_effect(gateway: Gateway) -> None:
    gateway.say(gateway.store(), similarity=1.0)

    assert ";" not in (await gateway.lookup()).reason
