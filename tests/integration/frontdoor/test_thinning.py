"""Steps left out under load: a real frontdoor and a real worker with a tiny model's weights and its shipped profile."""

import asyncio
from pathlib import Path

from pentimento.domain.image_request import Completed, ImageRequest, ReplayRequest
from pentimento.policies.thinning import ThinningMode
from pentimento.supervisor.models import find_model, shipped_thinning_profiles
from pentimento.testing.frontdoor_suite import running_suite
from tests.integration.unet_worker.conftest import serve

PLAIN = ImageRequest("a small yellow cross")


async def test_under_load_pictures_leave_out_what_their_profile_allows_and_are_replayed(folder: Path) -> None:
    profiles = shipped_thinning_profiles()
    async with (
        serve(find_model("tiny-light").path, folder, max_batch=1),
        running_suite(
            folder,
            worker_addresses=(f"unix:{folder / 'w'}",),
            thinning=ThinningMode.LOAD,
            thinning_profiles=profiles,
        ) as suite,
    ):
        alone = await suite.paint(PLAIN)
        told = [await suite.client.explain(one) for one in (PLAIN, ImageRequest(PLAIN.prompt, num_inference_steps=12))]
        asked = [ImageRequest(PLAIN.prompt, seed=seed) for seed in range(5)]
        binding = ImageRequest(PLAIN.prompt, seed=9, binding_steps=True)
        *many, bound = await asyncio.gather(*(suite.paint(one) for one in [*asked, binding]))
        thinned = next(one for one in many if one.provenance.route.thinned_steps)
        *_, again = [event async for event in suite.client.replay(ReplayRequest(thinned.request_id))]

    allowed, meant = (next(why for why in one.reasons if why.startswith("steps: ")) for one in told)
    assert allowed == "steps: all are taken, ENOUGH_TIME: there is time for them; 7 of 12 would be allowed"
    assert meant == "steps: all are taken, BINDING_STEPS: its number of steps is binding"
    assert (alone.provenance.steps_run, alone.provenance.route.thinned_steps) == (12, ())
    assert (bound.provenance.steps_run, bound.provenance.route.thinned_steps) == (12, ())
    # Of twelve steps all to the first, and six of the other eleven.
    assert thinned.provenance.route.thinned_steps == (1, 2, 4, 6, 8, 10)
    assert thinned.provenance.steps_run == 7
    assert "steps left out: from step 1 on 6 of 11 were taken" in thinned.provenance.notes
    assert isinstance(again, Completed)
    assert again.image == thinned.image and again.provenance.replay_equal
    assert again.provenance.route.thinned_steps == thinned.provenance.route.thinned_steps
