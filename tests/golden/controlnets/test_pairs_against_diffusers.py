"""Compare controlled images of two engines, one per half of the guidance, with diffusers' ControlNet pipelines: one and
three ControlNets, shares of the schedule, and pairs that end midway."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.fixtures.checkpoints import SIDE_PX
from lab.fixtures.controlled_generation import ControlledByDiffusers, ControlledCase, conditions_for
from lab.fixtures.diffusers_reference import Case
from lab.fixtures.local_control import Control, LocalControl
from pentimento.diffusion.controlnets import ControlSetting, load_controlnet
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart
from pentimento.diffusion.families import ControlResiduals, DiffusionModel, load_model
from pentimento.domain.generation import GenerationSpec, Scheduler
from tests.golden.controlnets.test_against_diffusers import EVERYWHERE, FAMILIES, NEGATIVE, PROMPT, THREE
from tests.support.torch_threads import one_thread  # noqa: F401 (a fixture of this module)
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.engine.test_pairing import Peer

STEPS = 6
CPU = torch.device("cpu")


class Sides:
    """Hold two engines and diffusers, with the same model and ControlNets."""

    def __init__(self, family: str, folder: Path) -> None:
        model, controlnets = FAMILIES[family](folder)
        self.model: DiffusionModel = load_model(model, CPU, torch.float32)
        self.networks = [load_controlnet(path, CPU, torch.float32) for path in controlnets]
        self.diffusers = ControlledByDiffusers(model, controlnets)

    def by_pair(self, case: Case, settings: Sequence[ControlSetting], lost_at: int | None) -> tuple[Tensor, int]:
        """Return the final latents and the number of paired steps."""
        seen = self._seen(case.seed, len(settings))
        peer = Peer(Loop(self.model), lost_at=lost_at, step_count=STEPS, control=self._source(seen, settings, (0, 1)))
        spec = GenerationSpec(
            case.prompt, case.negative_prompt, "tiny", SIDE_PX, SIDE_PX, STEPS, case.guidance_scale,
            case.scheduler, case.seed,
        )  # fmt: skip
        own = Own(self._source(seen, settings, (1, 2)), self._source(seen, settings, (0, 2)))
        loop = Loop(self.model)
        added = loop.add(DenoisingRequest(spec, NoiseStart(), control=own, peer=peer))
        loop.run()
        return added.finished.latent, added.finished.paired_step_count

    def _seen(self, seed: int, count: int) -> list[Tensor]:
        """Return each ControlNet's condition, for both rows."""
        generator, conditions = torch.Generator().manual_seed(seed), conditions_for(count, SIDE_PX, SIDE_PX)
        return [
            self.model.condition(pixels, 2, generator, unshifted=network.info.unshifted)
            for pixels, network in zip(conditions, self.networks, strict=False)
        ]

    @torch.inference_mode()
    def _source(
        self, seen: Sequence[Tensor], settings: Sequence[ControlSetting], rows: tuple[int, int]
    ) -> LocalControl:
        """Return the ControlNets of a range of rows."""
        first, last = rows
        acting = [
            Control(network, told[first:last] if len(told) == 2 else told, last - first, setting)
            for network, told, setting in zip(self.networks, seen, settings, strict=False)
        ]
        return LocalControl(computed_at_once, acting, STEPS)


def computed_at_once(compute: Callable[[], ControlResiduals]) -> "Future[ControlResiduals]":
    future: Future[ControlResiduals] = Future()
    future.set_result(compute())
    return future


class Own:
    """Ask the image's own worker for residuals of one row, or of both."""

    def __init__(self, conditional: LocalControl | None, whole: LocalControl | None) -> None:
        self._conditional = conditional
        self._whole = whole

    def ask(self, step_index: int, inputs: Any) -> None:
        self._asked = self._whole if len(inputs.latents) == 2 else self._conditional
        assert self._asked is not None
        self._asked.ask(step_index, inputs)

    def take(self, step_index: int) -> ControlResiduals | None:
        assert self._asked is not None
        return self._asked.take(step_index)


@pytest.fixture(scope="module", params=FAMILIES)
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sides:
    return Sides(request.param, tmp_path_factory.mktemp(request.param))


ACTING = {"everywhere": (EVERYWHERE,), "three, each in its share": THREE}


@pytest.mark.parametrize(("acting", "lost_at"), [("everywhere", 2), ("three, each in its share", None)])
def test_image_by_a_pair_equals_diffusers(sides: Sides, acting: str, lost_at: int | None) -> None:
    settings, flows = ACTING[acting], Scheduler.FLOW_MATCH_EULER in sides.model.info.schedulers
    scheduler = Scheduler.FLOW_MATCH_EULER if flows else Scheduler.DDIM
    case = Case(PROMPT, NEGATIVE, scheduler, seed=3, steps=STEPS)

    ours, paired = sides.by_pair(case, settings, lost_at)

    theirs = sides.diffusers.controlled(ControlledCase(case, settings), conditions_for(3, SIDE_PX, SIDE_PX))
    assert paired == (STEPS if lost_at is None else lost_at)
    assert float((ours - theirs).abs().max()) <= 1e-4
