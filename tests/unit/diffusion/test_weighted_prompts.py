"""Prompts with weights in the engine: bits without weights, lengths in a batch, limits."""

from typing import Any

import pytest
import torch

from lab.fixtures.checkpoints import with_uneven_norms, write_checkpoint, write_flow_checkpoint, write_xl_checkpoint
from pentimento.diffusion.denoising import DenoisingRequest, NoiseStart, condition
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.prompts import PromptMemo
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.prompt_syntax import PromptSyntax
from tests.unit.diffusion.engine.loops import Loop
from tests.unit.diffusion.specs import denoise, load, spec_with

WRITE = {"SD": write_checkpoint, "XL": write_xl_checkpoint, "flow": write_flow_checkpoint}


@pytest.fixture(scope="module", params=WRITE)
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DiffusionModel:
    return load(with_uneven_norms(WRITE[request.param](tmp_path_factory.mktemp("weighted") / "model")))


LONG = "a small red circle, and a (large:1.3) one"


def asked(**changes: Any) -> DenoisingRequest:
    return DenoisingRequest(spec_with(num_inference_steps=4, **changes), NoiseStart())


def weighted(**changes: Any) -> DenoisingRequest:
    return asked(prompt_syntax=PromptSyntax.A1111, **changes)


@pytest.mark.parametrize("clip_skip", [0, 1])
@pytest.mark.parametrize("negative", ["blurred", ""])
def test_prompt_without_weights_has_bits_of_plain_one(any_model: DiffusionModel, negative: str, clip_skip: int) -> None:
    memo, changes = PromptMemo(any_model), {"negative_prompt": negative, "clip_skip": clip_skip}

    plain, _ = condition(any_model, memo, asked(**changes))
    found, truncated = condition(any_model, memo, weighted(**changes))

    assert not truncated
    for one, other in zip(found.parts, plain.parts, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)  # type: ignore[arg-type]


def test_requests_share_passes_by_text_length(any_model: DiffusionModel) -> None:
    loop = Loop(any_model)
    sampler = {"scheduler": any_model.info.schedulers[0]}
    requests = [
        asked(**sampler),
        weighted(prompt="a (red:1.5) dot", **sampler),
        weighted(prompt=LONG, **sampler),
        weighted(negative_prompt=LONG, **sampler),
    ]
    added = [loop.add(one) for one in requests]

    loop.run()

    assert set(loop.observer.sizes) == {2}
    for one in added:
        torch.testing.assert_close(one.finished.latent, denoise(any_model, one.job.request), rtol=0, atol=1e-4)


@pytest.mark.parametrize("field", ["prompt", "negative_prompt"])
def test_prompt_of_too_many_chunks_is_refused(any_model: DiffusionModel, field: str) -> None:
    text = "circle" * 18
    condition(any_model, PromptMemo(any_model), weighted(**{field: text}))

    with pytest.raises(InvalidArgument, match=f"{field}: must have at most 8 chunks of 14 tokens, got 9"):
        condition(any_model, PromptMemo(any_model), weighted(**{field: f"{text}s more"}))
