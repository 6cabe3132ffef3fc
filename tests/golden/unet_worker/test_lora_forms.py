"""Compare a worker's latents with a LoHa and a DoRA of its directory with diffusers, with weights merged by formula."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from lab.fixtures.checkpoints import write_checkpoint
from lab.fixtures.diffusers_reference import Case, DiffusersReference
from lab.fixtures.lora_reference import blank_image, distance
from lab.fixtures.lora_serving import styled_worker
from lab.fixtures.lycoris_files import LycorisFile, write_lycoris
from pentimento.diffusion.families import load_model
from pentimento.diffusion.loras import layers_of
from pentimento.domain.generation import Scheduler

CASE = Case("a red circle", "blurred", Scheduler.DDIM, seed=3, steps=5)


@torch.no_grad()
def merged_latents(checkpoint: Path, files: Sequence[tuple[LycorisFile, float]]) -> torch.Tensor:
    """Return diffusers' latents with the files in its weights: each changes the weight without the others."""
    reference = DiffusersReference(checkpoint)
    unet = reference.pipeline(CASE).unet
    before = {name: value.double() for name, value in unet.state_dict().items()}
    for written, strength in files:
        for name, layer in written.layers.items():
            weight = before[f"{name}.weight"]
            unet.get_submodule(name).weight.add_((layer.merged(weight, strength) - weight).float())
    return reference.latents(CASE, blank_image(checkpoint))


def test_a_worker_generates_as_manually_merged_weights_do(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "model", prediction_type="v_prediction", timestep_spacing="trailing", clip_sample=False
    )
    model = load_model(checkpoint, torch.device("cpu"), torch.float32)
    base = layers_of(model.info.family, model.adaptable)
    loha = write_lycoris(tmp_path / "loha" / "a.safetensors", base, "loha", ("to_q", "conv1"), seed=1)
    dora = write_lycoris(tmp_path / "dora" / "b.safetensors", base, "lora", ("to_q", "conv2"), seed=2, dora="out")
    sets = ([(loha, 0.7)], [(dora, 1.0)], [(loha, -0.4), (dora, 0.8)])

    with styled_worker(checkpoint, [loha.path, dora.path]) as worker:
        ours = [worker.latents(CASE, [(one.path, weight) for one, weight in files]) for files in sets]
        beside = worker.latents(CASE, [(one.path, weight) for one, weight in sets[2]], beside_a_plain_one=True)
        plain = worker.latents(CASE, [])

    wanted = [merged_latents(checkpoint, files) for files in sets]
    assert [distance(one, other) for one, other in zip(ours, wanted, strict=True)] == [pytest.approx(0, abs=1e-4)] * 3
    assert distance(beside, wanted[2]) <= 1e-4
    assert all(distance(one, plain) > 0.01 for one in ours)
