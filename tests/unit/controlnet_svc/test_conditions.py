"""Embed conditioning images once per ControlNet, size and number of rows, within a bound on memory."""

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pentimento.domain.errors import InvalidArgument
from services.controlnet_svc.compute import conditions
from services.controlnet_svc.compute.conditions import EmbeddedConditions
from services.controlnet_svc.compute.thread import ComputeThread
from tests.support.images import a_png

SIDE_PX = 8


class Network:
    """Embeds an image as its mean, and counts."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self) -> None:
        self.embedded_count = 0

    def embed(self, condition: Tensor, row_count: int = 1) -> Tensor:
        self.embedded_count += 1
        return condition.mean().repeat(row_count, 1)


@pytest.fixture
def embedded() -> Iterator[EmbeddedConditions]:
    compute = ComputeThread(1)
    yield EmbeddedConditions(compute)
    compute.close()


def image(grey: int, side_px: int = SIDE_PX) -> bytes:
    return a_png(side_px, side_px, f"rgb({grey}, {grey}, {grey})")


async def embed(of: EmbeddedConditions, network: Network, grey: int, rows: int = 1, side_px: int = SIDE_PX) -> Tensor:
    return await of.of_image(network, image(grey, side_px), side_px, side_px, rows)  # type: ignore[arg-type]


async def test_an_image_that_comes_again_is_not_embedded_again(embedded: EmbeddedConditions) -> None:
    network = Network()

    first, again = await embed(embedded, network, 51), await embed(embedded, network, 51)

    assert network.embedded_count == 1
    assert again is first
    assert first.item() == pytest.approx(0.2)


async def test_another_image_size_row_count_or_network_is(embedded: EmbeddedConditions) -> None:
    network, other = Network(), Network()

    found = [
        await embed(embedded, network, 51),
        await embed(embedded, network, 102),
        await embed(embedded, network, 51, rows=2),
        await embed(embedded, network, 51, side_px=16),
    ]
    await embed(embedded, other, 51)

    assert (network.embedded_count, other.embedded_count) == (4, 1)
    assert [one.shape[0] for one in found] == [1, 1, 2, 1]
    assert found[1].item() == pytest.approx(0.4)


async def test_the_last_ones_used_are_kept(embedded: EmbeddedConditions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "KEPT_EACH_COUNT", 2)
    network = Network()

    for grey in (1, 2, 1, 3, 1, 2):
        await embed(embedded, network, grey)

    # 1, 2 and 3 once; 1 was used in between and stayed; 2 had to go for 3.
    assert network.embedded_count == 4


async def test_no_more_bytes_are_kept_than_is_said(
    embedded: EmbeddedConditions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conditions, "KEPT_EACH_BYTES", 4)
    network = Network()

    for rows in (1, 1, 2, 2):
        await embed(embedded, network, 7, rows=rows)

    # The condition fits with one row, and not with two.
    assert network.embedded_count == 3


async def test_they_go_with_their_network(embedded: EmbeddedConditions) -> None:
    network = Network()
    gone = weakref.ref(await embed(embedded, network, 7))

    del network
    # The embedding thread releases its last network with the next one.
    await embed(embedded, Network(), 7)
    gc.collect()

    assert gone() is None


async def test_of_image_refuses_no_image_and_another_size(embedded: EmbeddedConditions) -> None:
    network = Network()
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            await embedded.of_image(network, b"no image", SIDE_PX, SIDE_PX, 1)  # type: ignore[arg-type]
    assert network.embedded_count == 0

    # The right size is kept by now.
    await embed(embedded, network, 7)
    with pytest.raises(InvalidArgument):
        await embedded.of_image(network, image(7), 16, 16, 1)  # type: ignore[arg-type]
