"""SDXL and SD3 through the real service: what the cache keeps of them, and what they start from."""

import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from lab.fixtures.checkpoints import write_flow_checkpoint, write_xl_checkpoint
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import FromImage, GenerationSpec, NoiseForm, Scheduler
from tests.integration.unet_worker.conftest import Served, serve
from tests.integration.unet_worker.requests import DONOR, GRANT, attempt, execute, from_latent, spec_with
from tests.support.calls import result_of

FAMILIES: dict[str, tuple[Callable[[Path], Path], NoiseForm]] = {
    "stable_diffusion_xl": (write_xl_checkpoint, NoiseForm.VARIANCE_PRESERVING),
    "stable_diffusion_3": (write_flow_checkpoint, NoiseForm.FLOW_MATCHING),
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(params=FAMILIES, scope="module", loop_scope="module")
async def lasting_worker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    write, _ = FAMILIES[request.param]
    with tempfile.TemporaryDirectory(prefix="pmt-") as folder:
        async with serve(write(tmp_path_factory.mktemp("family") / "model"), Path(folder)) as served:
            assert served.held.family == request.param
            yield served


@pytest.fixture
def family(shared_worker: Served) -> Served:
    return shared_worker


def spec_of(served: Served) -> GenerationSpec:
    return spec_with(scheduler=Scheduler(served.held.schedulers[0]))


async def test_a_resumed_latent_gives_the_same_picture_in_fewer_steps(family: Served) -> None:
    spec = spec_of(family)
    whole = await result_of(execute(family, spec=spec, cache_grant=GRANT))

    resumed = await result_of(execute(family, spec=spec, attempt=attempt(2), start=from_latent(whole, 5)))

    assert resumed.image == whole.image
    assert (resumed.steps_run, resumed.steps_saved) == (3, 5)


async def test_a_cached_image_is_refined_in_the_familys_form_of_noise(family: Served) -> None:
    spec, (_, form) = spec_of(family), FAMILIES[family.held.family]
    whole = await result_of(execute(family, spec=spec, cache_grant=GRANT))
    assert whole.captured.image is not None
    start = FromImage(whole.captured.image, 5, form, DONOR)

    refined = await result_of(execute(family, spec=spec, attempt=attempt(2), start=start))

    assert (refined.steps_run, refined.steps_saved, refined.notes) == (3, 5, ())


async def test_the_other_form_of_noise_is_refused(family: Served) -> None:
    spec, (_, form) = spec_of(family), FAMILIES[family.held.family]
    whole = await result_of(execute(family, spec=spec, cache_grant=GRANT))
    assert whole.captured.image is not None
    other = next(candidate for candidate in NoiseForm if candidate is not form)

    with pytest.raises(InvalidArgument, match="noise_form"):
        start = FromImage(whole.captured.image, 5, other, DONOR)
        await result_of(execute(family, spec=spec, attempt=attempt(2), start=start))


async def test_schedulers_of_another_family_are_refused_with_those_there_are(family: Served) -> None:
    other = next(scheduler for scheduler in Scheduler if scheduler.value not in family.held.schedulers)

    with pytest.raises(InvalidArgument, match=family.held.schedulers[0]):
        await result_of(execute(family, spec=spec_with(scheduler=other)))
