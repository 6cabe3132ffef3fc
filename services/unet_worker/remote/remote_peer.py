"""Supply the engine with the other half of one request's guidance: from a peer, over a stream."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from torch import Tensor

from pentimento.clients.guidance_half import HalfControlNet, HalfStreamRequest
from pentimento.diffusion.families.model import DenoiserInput
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.execution import LatentParallelPeer
from pentimento.domain.fleet import HeldModel
from pentimento.tensors.cuda import outgoing_tensor, tensor_over
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.remote.remote_control import RemoteControlNet, optional_tensor
from services.unet_worker.remote.replayed_stream import Patience, ReplayedStream
from services.unet_worker.remote.replicas import PeerWorkers, StreamPlace

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
# The engine lets a step's latents leave before it computes: if both share a core, the peer's half would otherwise
# begin only when the worker's own half leaves the core for a moment.
SENDING_S = 0.003


def _raised(error: PentimentoError) -> PentimentoError:
    return error


class RemotePeer:
    """Supply halves as a `GuidancePeer`, with `wake` called when one has arrived. `controlnets` are those of the
    unconditional row. Create and close it on the event loop."""

    def __init__(
        self,
        order: ExecuteOrder,
        held: HeldModel,
        peer: LatentParallelPeer,
        workers: PeerWorkers,
        wake: Callable[[], None],
        controlnets: Sequence[RemoteControlNet] = (),
    ) -> None:
        self._controlnets = tuple(controlnets)
        self._order = order
        self._held = held
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        place = StreamPlace("", [peer.address], workers, Counter())
        self._stream = ReplayedStream(place, Patience(0, 1, OPEN_TIMEOUT_S, _raised), wake)
        self._asked: int | None = None
        self._over = False

    def ask(self, step_index: int, inputs: DenoiserInput) -> bool:
        """Request a step's half, unless the peer is lost or still at an earlier step; return whether it was requested.
        Returns once the request is sent, or after SENDING_S."""
        if self._over or not self._is_answered():
            return False
        if self._asked is None:
            self._stream.open(self._request(inputs))
        self._asked = step_index
        latents = outgoing_tensor(inputs.latents, UNBOUND)
        sent = self._stream.ask(step_index, float(inputs.timesteps[0]), latents, step_index)
        if sent is not None:
            sent.wait(SENDING_S)
        return True

    def take(self, step_index: int) -> Tensor | None:
        """Return the half, valid until the next `ask`; None while it is in flight. Raises Unavailable if it will not
        arrive."""
        if self._asked != step_index:
            raise Unavailable("PEER_LOST", "this step was not requested")
        try:
            found = self._stream.take(step_index)
        except PentimentoError as error:
            if not self._over:
                extra = {"peer": self._peer.worker_id, "reason": error.reason}
                logger.warning("a peer was lost; the image continues without it", extra=extra)
            self._over = True
            raise Unavailable("PEER_LOST", f"the peer is lost: {error.reason}") from None
        return None if found is None else tensor_over(found.tensors[0])

    def leave(self) -> None:
        self._over = True
        self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        self._over = True
        self._stream.close(in_order=False)

    def _is_answered(self) -> bool:
        try:
            return self._asked is None or self._stream.take(self._asked) is not None
        except PentimentoError:
            return False

    def _request(self, inputs: DenoiserInput) -> HalfStreamRequest:
        spec, texts = self._order.spec, inputs.conditioning
        return HalfStreamRequest(
            attempt=self._order.attempt,
            model_digest=self._held.model_digest,
            width_px=spec.width_px,
            height_px=spec.height_px,
            step_count=spec.num_inference_steps,
            states=outgoing_tensor(texts.states, UNBOUND),
            pooled=optional_tensor(texts.pooled),
            sizes=optional_tensor(texts.sizes),
            loras=spec.loras,
            controlnets=[half_controlnet(controlnet) for controlnet in self._controlnets],
        )


def half_controlnet(controlnet: RemoteControlNet) -> HalfControlNet:
    """Return a peer's ControlNet with its replicas, the first one last: of equally loaded replicas the peer takes
    another than this worker, and both halves of the residuals are computed in parallel."""
    first, *others = controlnet.addresses
    return HalfControlNet(controlnet.selection, [*others, first], optional_tensor(controlnet.encoded))
