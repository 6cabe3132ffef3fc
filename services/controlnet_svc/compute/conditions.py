"""Conditioning images, embedded once: pictures of one call, and those that are painted again, tell a ControlNet the
same."""

import asyncio
import hashlib
from collections import OrderedDict
from weakref import WeakKeyDictionary

from torch import Tensor

from pentimento.diffusion.controlnets import ControlNet
from pentimento.diffusion.images import condition_of_size
from services.controlnet_svc import metrics
from services.controlnet_svc.compute.thread import ComputeThread

# What is kept of one ControlNet: an image of 1024 pixels takes 21 MB of an SDXL ControlNet in half precision.
KEPT_EACH_COUNT = 8
KEPT_EACH_BYTES = 64 << 20
# Of an image: its digest, its width and height, and the rows that it was embedded for.
ConditionKey = tuple[bytes, int, int, int]


class EmbeddedConditions:
    """What ControlNets made of the images that they were told lately, on their devices, and gone with them. On the
    event loop only."""

    def __init__(self, compute: ComputeThread) -> None:
        self._compute = compute
        self._kept: WeakKeyDictionary[ControlNet, OrderedDict[ConditionKey, Tensor]] = WeakKeyDictionary()

    async def of_image(
        self, network: ControlNet, image: bytes, width_px: int, height_px: int, row_count: int
    ) -> Tensor:
        """Return what the network makes of an encoded image for so many rows. Raises InvalidArgument for an image that
        is none, or not of that size."""
        key = (hashlib.sha256(image).digest(), width_px, height_px, row_count)
        kept = self._kept.setdefault(network, OrderedDict())
        if (found := kept.get(key)) is not None:
            kept.move_to_end(key)
            metrics.CONDITIONS.labels("kept").inc()
            return found
        embedded = await self.of_pixels(
            network, await asyncio.to_thread(condition_of_size, image, *key[1:3]), row_count
        )
        metrics.CONDITIONS.labels("embedded").inc()
        kept[key] = embedded
        while len(kept) > KEPT_EACH_COUNT or sum(_bytes(one) for one in kept.values()) > KEPT_EACH_BYTES:
            kept.popitem(last=False)
        return embedded

    async def of_pixels(self, network: ControlNet, condition: Tensor, row_count: int) -> Tensor:
        """Return what the network makes of a condition (1 or rows, channels, height, width), which is not kept."""

        def embed() -> Tensor:
            return network.embed(condition.to(network.device, network.dtype), row_count)

        return await asyncio.wrap_future(self._compute.call(embed))


def _bytes(tensor: Tensor) -> int:
    """Of its memory, of which an expanded tensor shows the same part several times."""
    return tensor.untyped_storage().nbytes()
