"""Images that reuse deep features at some steps, alone and among others."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.engine import Denoiser, has_features, reused_step_share
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.model import BatchKey, ControlResiduals, DenoiserInput
from pentimento.domain.generation import Scheduler
from tests.unit.diffusion.engine.loops import Added, Loop
from tests.unit.diffusion.specs import denoise, spec_with

STEPS = 9
FULL = (1, 4, 7)
REUSED = [2, 3, 5, 6, 8]


class Counted(Denoiser):
    """The real passes; the rows of each kind of pass are recorded."""

    def __init__(self, model: DiffusionModel) -> None:
        super().__init__(model)
        self.rows: list[tuple[str, int]] = []

    def predict(self, inputs: DenoiserInput) -> Tensor:
        self.rows.append(("whole", len(inputs.latents)))
        return super().predict(inputs)

    def predict_and_keep(self, inputs: DenoiserInput) -> tuple[Tensor, Tensor | None]:
        self.rows.append(("kept", len(inputs.latents)))
        return super().predict_and_keep(inputs)

    def predict_from(self, inputs: DenoiserInput, features: Tensor) -> Tensor:
        self.rows.append(("reused", len(inputs.latents)))
        return super().predict_from(inputs, features)


def asked(model: DiffusionModel, seed: int, full: tuple[int, ...] = FULL, **changes: Any) -> DenoisingRequest:
    chosen = {"seed": seed, "prompt": f"picture {seed}", "num_inference_steps": STEPS}
    spec = spec_with(**{**chosen, "scheduler": model.info.schedulers[0], **changes})
    return DenoisingRequest(spec, NoiseStart(), full_steps=full)


def alone(model: DiffusionModel, request: DenoisingRequest) -> Added:
    loop = Loop(model)
    added = loop.add(request)
    loop.run()
    return added


@pytest.mark.parametrize("name", ["model", "xl_model", "flow_model"])
def test_reusing_rows_leave_whole_passes_and_return(name: str, request: pytest.FixtureRequest) -> None:
    found: DiffusionModel = request.getfixturevalue(name)
    denoiser = Counted(found)
    loop = Loop(found, denoiser=denoiser)
    requests = [asked(found, 1), asked(found, 2, (0, 5)), asked(found, 3, ())]
    added = [loop.add(one) for one in requests]

    loop.run()

    for one, own in zip(added, requests, strict=True):
        wanted = alone(found, own).heard.latent
        assert torch.equal(one.heard.latent, wanted)
        assert torch.equal(wanted, denoise(found, replace(own, full_steps=()))) is not bool(own.full_steps)
    assert [one.finished.reused_count for one in added] == [len(REUSED), 7, 0]
    assert denoiser.rows[:5] == [("kept", 6), ("reused", 2), ("kept", 4), ("reused", 4), ("whole", 2)]


def test_a_start_between_whole_steps_runs_its_first_step_whole(model: DiffusionModel) -> None:
    latent = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(7))
    request = replace(asked(model, 7), start=LatentStart(latent, 5))

    assert alone(model, request).finished.reused_count == 2  # steps 6 and 8


def test_features_are_dropped_once_no_step_reuses_them(model: DiffusionModel) -> None:
    loop = Loop(model)
    added, other = loop.add(asked(model, 1, (0, 2, 3))), loop.add(asked(model, 2, (4,)))
    kept = []
    for _ in range(4):
        loop.tick()
        kept.append((added.job.begun.features is not None, other.job.begun.features is not None))

    assert kept == [(True, False), (True, False), (False, False), (True, False)]
    size = added.job.begun.features
    assert size is not None and size.shape[0] == 2 and size.untyped_storage().nbytes() == size.nbytes


@pytest.mark.parametrize("name", ["model", "flow_model"])
def test_kept_features_come_with_the_bits_of_predict(name: str, request: pytest.FixtureRequest) -> None:
    found: DiffusionModel = request.getfixturevalue(name)
    wanted = denoise(found, asked(found, 3))

    assert has_features(found)
    assert torch.equal(alone(found, asked(found, 3, tuple(range(STEPS)))).heard.latent, wanted)
    # All steps but the last keep their features, and the last reuses them.
    late = alone(found, asked(found, 3, tuple(range(STEPS - 1))))
    assert late.finished.reused_count == 1 and not torch.equal(late.heard.latent, wanted)


def test_reused_step_share_is_of_a_whole_step(model: DiffusionModel) -> None:
    key = BatchKey(64, 64, guided=True)

    assert 0.0 < reused_step_share(model, Denoiser(model), key, 10.0) < 0.1
    assert reused_step_share(model, Denoiser(model), key, 1e-9) == 1.0


def test_thinning_on_the_way_is_ignored(model: DiffusionModel) -> None:
    loop = Loop(model)
    added = loop.add(asked(model, 1))
    loop.tick()
    added.job.thin((4, 8))
    loop.run()

    assert added.finished.thinned_steps == ()
    assert torch.equal(added.heard.latent, alone(model, asked(model, 1)).heard.latent)


class LateResiduals:
    """Residuals without effect that arrive a tick later."""

    def __init__(self) -> None:
        self._asked: dict[int, int] = {}

    def ask(self, step: int, inputs: DenoiserInput) -> None:
        self._asked[step] = 0

    def take(self, step: int) -> ControlResiduals | None:
        self._asked[step] += 1
        return ControlResiduals() if self._asked[step] > 3 else None


def test_late_residuals_of_others_leave_reuse_as_it_is(model: DiffusionModel) -> None:
    loop = Loop(model)
    added = loop.add(asked(model, 1, scheduler=Scheduler.EULER))
    loop.add(replace(asked(model, 2, ()), control=LateResiduals()))

    loop.run()

    assert added.finished.reused_count == len(REUSED)
    assert torch.equal(added.heard.latent, alone(model, asked(model, 1, scheduler=Scheduler.EULER)).heard.latent)
