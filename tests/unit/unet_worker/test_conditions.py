"""Choose the replica that encodes the condition of a ControlNet, and the rows of two workers."""

from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from pentimento.api.controlnet.v1 import controlnet_service_pb2 as pb
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.domain.errors import InvalidArgument, Unavailable
from pentimento.domain.generation import ControlNetSelection, Preprocessor
from services.unet_worker.remote.remote_control import ConditionEncoder, RemoteControlNet, of_row
from services.unet_worker.remote.remote_peer import half_controlnet
from tests.support.images import a_png
from tests.unit.unet_worker.orders import SPEC

WANTED = "sha256:wanted"
IMAGE = a_png(SPEC.width_px, SPEC.height_px)


class Model:
    """A model of SD3's class. Its condition shows whether it was unshifted; it keeps the last pixels."""

    info = SimpleNamespace(family="stable_diffusion_3", is_guided=lambda scale: scale > 1.0)

    pixels = torch.empty(0)

    def condition(self, pixels: torch.Tensor, _rows: int, _generator: object, *, unshifted: bool) -> torch.Tensor:
        self.pixels = pixels
        return torch.tensor([float(unshifted)])


class Engine:
    def call(self, act: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(act())
        return future


class Replicas:
    """Replicas by address, each with the digest of its ControlNet, and whether its condition is unshifted."""

    def __init__(self, **told: tuple[str, bool]) -> None:
        self._told = told

    def at(self, address: str) -> Any:
        async def status(_timeout_s: float) -> pb.GetStatusResponse:
            digest, unshifted = self._told[address]
            return pb.GetStatusResponse(
                controlnets=[pb.ControlNetInfo(name="edges", digest=digest, unshifted=unshifted)]
            )

        return SimpleNamespace(client=SimpleNamespace(status=status))


def encoder_of(model: Model | None = None, **told: tuple[str, bool]) -> ConditionEncoder:
    return ConditionEncoder(cast(Any, model or Model()), cast(Any, Engine()), cast(Any, Replicas(**told)))


def controlnet(*addresses: str, digest: str = WANTED) -> RemoteControlNet:
    return RemoteControlNet(ControlNetSelection("edges", IMAGE, digest=digest), ControlSetting(), addresses)


async def test_replica_with_other_weights_is_ignored() -> None:
    """A replica may restart with another registry after the plan was made."""
    encoder = encoder_of(restarted=("sha256:other", True), other=(WANTED, False))

    (found,) = await encoder.encoded([controlnet("restarted", "other")], SPEC)

    assert found.encoded is not None and found.encoded.tolist() == [0.0]


async def test_controlnet_without_replica_of_its_weights_is_lost() -> None:
    with pytest.raises(Unavailable, match="edges"):
        await encoder_of(restarted=("sha256:other", True)).encoded([controlnet("restarted")], SPEC)


async def test_latent_condition_is_of_edges_and_never_of_depth() -> None:
    model, asked = Model(), controlnet("there")
    encoder = encoder_of(model, there=(WANTED, False))

    def by(preprocessor: Preprocessor) -> RemoteControlNet:
        return replace(asked, selection=replace(asked.selection, preprocessor=preprocessor))

    (found,) = await encoder.encoded([by(Preprocessor.EDGES)], SPEC)

    assert found.selection.preprocessor is None and found.encoded is not None
    assert model.pixels.shape == (1, 3, SPEC.height_px, SPEC.width_px) and not model.pixels.any()
    await encoder.encoded([asked], SPEC)
    assert model.pixels.any()  # one colour, without an edge
    with pytest.raises(InvalidArgument, match=r"spec.controlnets\[0\].preprocessor: must be edges or empty"):
        await encoder.encoded([by(Preprocessor.DEPTH)], SPEC)


EDGES = RemoteControlNet(ControlNetSelection("edges", b"png"), ControlSetting(), ("a", "b", "c"))


def test_the_peer_tries_another_replica_first_than_its_worker_does() -> None:
    assert list(half_controlnet(EDGES).addresses) == ["b", "c", "a"]


def test_each_row_has_its_condition_latent_or_image() -> None:
    rows = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    encoded = RemoteControlNet(EDGES.selection, EDGES.setting, EDGES.addresses, rows)

    for row, value in ((0, 1.0), (1, 2.0)):
        found = of_row((EDGES, encoded), row)
        assert found[0] is EDGES
        assert found[1].encoded is not None and found[1].encoded.flatten().tolist() == [value]
