"""Embed conditioning images once: images of one call, and repeated requests, have the same condition."""

import asyncio
import hashlib
from collections import OrderedDict
from functools import partial
from weakref import WeakKeyDictionary

from torch import Tensor

from pentimento.diffusion.controlnets import ControlNet
from pentimento.diffusion.controlnets.depth import DepthModel
from pentimento.diffusion.controlnets.edges import edges
from pentimento.diffusion.images import condition_of_size
from pentimento.domain.generation import Preprocessor
from services.controlnet_svc import metrics
from services.controlnet_svc.compute.thread import ComputeThread

# Cache limits of one ControlNet: an image of 1024 pixels takes 21 MB of an SDXL ControlNet in half precision.
KEPT_EACH_COUNT = 8
KEPT_EACH_BYTES = 64 << 20
# Key of an image: its digest, its width and height, its number of rows, and its preprocessor.
ConditionKey = tuple[bytes, int, int, int, Preprocessor | None]


class EmbeddedConditions:
    """Cache the embeddings of recent images, on their ControlNets' devices, for the life of each ControlNet. On the
    event loop only."""

    def __init__(self, compute: ComputeThread, depth: DepthModel | None = None) -> None:
        self._compute = compute
        self._depth = depth
        self._kept: WeakKeyDictionary[ControlNet, OrderedDict[ConditionKey, Tensor]] = WeakKeyDictionary()

    async def of_image(
        self,
        network: ControlNet,
        image: bytes,
        width_px: int,
        height_px: int,
        row_count: int,
        preprocessor: Preprocessor | None = None,
    ) -> Tensor:
        """Return the network's embedding of an encoded image, preprocessed, for `row_count` rows. Raises
        InvalidArgument for an invalid image, or one of another size."""
        key = (hashlib.sha256(image).digest(), width_px, height_px, row_count, preprocessor)
        kept = self._kept.setdefault(network, OrderedDict())
        if (found := kept.get(key)) is not None:
            kept.move_to_end(key)
            metrics.CONDITIONS.labels("kept").inc()
            return found
        pixels = await asyncio.to_thread(condition_of_size, image, *key[1:3])
        embedded = await self.of_pixels(network, await self._preprocessed(pixels, preprocessor), row_count)
        metrics.CONDITIONS.labels("embedded").inc()
        kept[key] = embedded
        while len(kept) > KEPT_EACH_COUNT or sum(_bytes(one) for one in kept.values()) > KEPT_EACH_BYTES:
            kept.popitem(last=False)
        return embedded

    async def _preprocessed(self, pixels: Tensor, preprocessor: Preprocessor | None) -> Tensor:
        if preprocessor is Preprocessor.DEPTH and self._depth is not None:
            return await asyncio.wrap_future(self._compute.call(partial(self._depth.depth, pixels)))
        return await asyncio.to_thread(edges, pixels) if preprocessor is Preprocessor.EDGES else pixels

    async def of_pixels(self, network: ControlNet, condition: Tensor, row_count: int) -> Tensor:
        """Return the network's embedding of a condition (1 or rows, channels, height, width), which is not cached."""

        def embed() -> Tensor:
            return network.embed(condition.to(network.device, network.dtype), row_count)

        return await asyncio.wrap_future(self._compute.call(embed))


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
