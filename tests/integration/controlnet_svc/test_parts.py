"""Test residuals of a transformer over a line: sent in parts as they are computed, and equal to diffusers' at the
end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import SD3ControlNetModel

from lab.fixtures.checkpoints import write_flow_controlnet
from lab.fixtures.controlnet_serving import register
from lab.fixtures.step_streams import answer_to
from pentimento.clients.controlnet import ResidualStream, ResidualStreamRequest
from pentimento.domain.generation import Attempt, ControlNetSelection
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.wire.tensors import UNBOUND
from tests.integration.controlnet_svc.conftest import Service, tensors_of

BLOCKS = 12
OPEN_S = 120.0


@pytest.fixture
def overrides(tmp_path: Path) -> dict[str, Any]:
    register(tmp_path, [write_flow_controlnet(tmp_path / "own", num_layers=BLOCKS)])
    return {"controlnets": tmp_path / "registry.json"}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


STATES, POOLED, CONDITION, LATENTS = (
    random(*shape, seed=seed) for seed, shape in enumerate([(2, 6, 40), (2, 36), (2, 8, 8, 8), (2, 8, 8, 8)])
)


def request() -> ResidualStreamRequest:
    return ResidualStreamRequest(
        attempt=Attempt("request", 1, 7, "frontdoor", 1, "tenant"),
        controlnet=ControlNetSelection("control-0", b"", conditioning_scale=0.7),
        base_model_digest="any",
        base_model_family="stable_diffusion_3",
        width_px=32,
        height_px=32,
        step_count=10,
        latent_dims=(8, 8, 8),
        states=outgoing_tensor(STATES, UNBOUND),
        pooled=outgoing_tensor(POOLED, UNBOUND),
        encoded=outgoing_tensor(CONDITION, UNBOUND),
    )


def recorded(stream: ResidualStream) -> list[tuple[int, int, int]]:
    """Record everything that arrives on its line: the step, the number of received tensors, the expected number."""
    heard: list[tuple[int, int, int]] = []
    assert stream._line is not None
    line = stream._line
    read = line.read

    def reading() -> list[tuple[int, ReceivedTensors]]:
        found = read()
        heard.extend((step, len(one.tensors), one.awaited_count) for step, one in found)
        return found

    line.read = reading  # type: ignore[method-assign]
    return heard


@torch.inference_mode()
def of_diffusers(directory: Path, timestep: float) -> dict[str, torch.Tensor]:
    residuals = SD3ControlNetModel.from_pretrained(directory)(
        hidden_states=LATENTS,
        controlnet_cond=CONDITION,
        encoder_hidden_states=STATES,
        pooled_projections=torch.zeros_like(POOLED),
        timestep=torch.tensor([timestep, timestep]),
        conditioning_scale=0.7,
        return_dict=False,
    )[0]
    return {f"block_{index}": tensor for index, tensor in enumerate(residuals)}


async def test_a_steps_residuals_come_in_parts_and_are_those_of_diffusers(service: Service, tmp_path: Path) -> None:
    stream = await service.client.open_stream(request(), 1, OPEN_S)
    heard = recorded(stream)

    for step, timestep in enumerate((900.0, 500.0, 100.0)):
        received = await answer_to(stream, step, timestep, outgoing_tensor(LATENTS, UNBOUND))
        found, wanted = tensors_of(received), of_diffusers(tmp_path / "own", timestep)
        assert found.keys() == wanted.keys()
        for layer, tensor in wanted.items():
            torch.testing.assert_close(found[layer], tensor, atol=1e-5, rtol=1e-5)

    parts = [(1, 11), (3, 9), (7, 5), (12, 0)]
    assert heard == [(step, *part) for step in range(3) for part in parts]
    stream.close()
