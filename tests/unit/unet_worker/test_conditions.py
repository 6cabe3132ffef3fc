"""What ControlNets that see latents are told, by what their replicas say of them."""

import io
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from PIL import Image

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import Unavailable
from pentimento.domain.generation import ControlNetSelection
from services.unet_worker.control.conditions import ConditionEncoder
from services.unet_worker.control.remote_control import RemoteControlNet
from tests.unit.unet_worker.orders import SPEC

WANTED = "sha256:wanted"
IMAGE = io.BytesIO()
Image.new("RGB", (SPEC.width_px, SPEC.height_px)).save(IMAGE, "PNG")


class Model:
    """Of SD3's class. What it encodes says whether it was to be unshifted."""

    info = SimpleNamespace(family="stable_diffusion_3")

    def condition(self, _pixels: object, _rows: int, _generator: object, *, unshifted: bool) -> torch.Tensor:
        return torch.tensor([float(unshifted)])


class Engine:
    def call(self, act: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(act())
        return future


class Replicas:
    """By address, the digest of the one ControlNet that each serves, and whether its condition is unshifted."""

    def __init__(self, **told: tuple[str, bool]) -> None:
        self._told = told

    def watch(self, address: str) -> Any:
        async def status(_timeout_s: float) -> pb.GetStatusResponse:
            digest, unshifted = self._told[address]
            return pb.GetStatusResponse(
                controlnets=[pb.ControlNetInfo(name="edges", digest=digest, unshifted=unshifted)]
            )

        return SimpleNamespace(client=SimpleNamespace(status=status))


def encoder_of(**told: tuple[str, bool]) -> ConditionEncoder:
    return ConditionEncoder(cast(Any, Model()), cast(Any, Engine()), cast(Any, Replicas(**told)))


def controlnet(*addresses: str, digest: str = WANTED) -> RemoteControlNet:
    return RemoteControlNet(ControlNetSelection("edges", IMAGE.getvalue(), digest=digest), ControlSetting(), addresses)


async def test_a_replica_with_other_weights_under_the_name_says_nothing_of_them() -> None:
    """As one that was started again with another registry, since the plan was made."""
    encoder = encoder_of(restarted=("sha256:other", True), other=(WANTED, False))

    (found,) = await encoder.encoded([controlnet("restarted", "other")], SPEC)

    assert found.encoded is not None and found.encoded.tolist() == [0.0]


async def test_a_controlnet_whose_weights_nobody_serves_any_more_is_lost() -> None:
    with pytest.raises(Unavailable, match="edges"):
        await encoder_of(restarted=("sha256:other", True)).encoded([controlnet("restarted")], SPEC)
