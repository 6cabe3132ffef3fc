"""Supply the engine with the other half of one request's guidance: from a peer, over a stream."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import grpc.aio
import torch
from torch import Tensor

from pentimento.clients.guidance_half import GuidanceHalfClient, HalfControlNet, HalfStream, HalfStreamRequest
from pentimento.diffusion.families.model import DenoiserInput
from pentimento.domain.errors import PentimentoError, Unavailable
from pentimento.domain.execution import LatentParallelPeer
from pentimento.domain.fleet import HeldModel
from pentimento.tensors.device import outgoing_tensor, tensor_over
from pentimento.tensors.lines import LineListener
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.regions import RegionDirectory
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.control.remote_control import RemoteControlNet

logger = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
# After it the peer is lost for the rest of the request. The engine has continued without it long before.
STEP_TIMEOUT_S = 60.0
# The engine lets a step's latents leave before it computes: if both share a core, the peer's half would otherwise
# begin only when the worker's own half leaves the core for a moment.
SENDING_S = 0.003
# A peer without a request for this long is dropped at the next `take`; a later request connects again.
IDLE_S = 60.0


@dataclass
class _KnownPeer:
    """Hold a peer, its number of requests, and the time since when it has none (seconds of the event loop)."""

    channel: grpc.aio.Channel
    client: GuidanceHalfClient
    picture_count: int = 0
    idle_since_s: float = 0.0


class PeerWorkers:
    """Hold channels to peers, closed after a while without a request; `directory` holds the memory shared with peers of
    this host; `listener` as in `GuidanceHalfClient`. On the event loop only."""

    def __init__(
        self,
        open_channel: Callable[[str], grpc.aio.Channel],
        directory: RegionDirectory | None,
        listener: LineListener | None = None,
    ) -> None:
        self._open_channel = open_channel
        self._directory = directory
        self._listener = listener
        self._known: dict[str, _KnownPeer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, address: str) -> GuidanceHalfClient:
        """Return the client of a peer, and count one more request on it until `leave`."""
        self._forget_idle()
        if address not in self._known:
            channel = self._open_channel(address)
            client = GuidanceHalfClient(channel, self._directory, listener=self._listener)
            self._known[address] = _KnownPeer(channel, client)
        self._known[address].picture_count += 1
        return self._known[address].client

    def leave(self, address: str) -> None:
        """Count one request less on the peer."""
        known = self._known[address]
        known.picture_count -= 1
        known.idle_since_s = asyncio.get_running_loop().time()

    def _forget_idle(self) -> None:
        """Close channels of idle peers: workers come and go, with different addresses."""
        now_s = asyncio.get_running_loop().time()
        for address, known in tuple(self._known.items()):
            if not known.picture_count and now_s - known.idle_since_s > IDLE_S:
                del self._known[address]
                task = asyncio.create_task(known.channel.close(), name="idle-peer")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


@dataclass(frozen=True)
class _AskedStep:
    """Hold a requested step: its answer by the event loop; None if the engine's thread sent it by a line."""

    step_index: int
    answer: "Future[Tensor] | None"


class RemotePeer:
    """Supply halves as a `GuidancePeer`. The engine's thread calls `ask` and `take`, and sends steps by a line; the
    event loop sends steps over gRPC, and calls `wake` when a half has arrived. `controlnets` are those of the
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
        self._workers = workers
        self._client = workers.take(peer.address)
        self._taken = True
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._stream: HalfStream | None = None
        self._asked: _AskedStep | None = None
        self._over = False

    def ask(self, step_index: int, inputs: DenoiserInput) -> bool:
        """Request a step's half, unless the peer is lost or still at an earlier step; return whether it was requested.
        Returns once the request is sent, or after SENDING_S."""
        if self._over or (self._asked is not None and not self._is_answered(self._asked)):
            return False
        if self._sent_now(step_index, inputs):
            self._asked = _AskedStep(step_index, None)
            return True
        is_open, sent = self._stream is not None, threading.Event()
        answer = asyncio.run_coroutine_threadsafe(self._ask(step_index, inputs, sent), self._loop)
        self._asked = _AskedStep(step_index, answer)
        answer.add_done_callback(lambda _: self._wake())
        if is_open:
            sent.wait(SENDING_S)
        return True

    def take(self, step_index: int) -> Tensor | None:
        """Return the half, valid until the next `ask`; None while it is in flight. Raises Unavailable if it will not
        arrive."""
        asked = self._asked
        if asked is None or asked.step_index != step_index:
            raise Unavailable("PEER_LOST", "this step was not requested")
        if asked.answer is None or not asked.answer.done():
            return self._arrived(asked)
        try:
            return asked.answer.result()
        except CancelledError:
            raise Unavailable("PEER_LOST", "the stream to the peer was closed") from None

    def _arrived(self, asked: _AskedStep) -> Tensor | None:
        stream = self._stream
        # Checked first: an answer that arrived before the stream was lost still counts.
        will_answer = stream is not None and not stream.failed
        found = None if stream is None else stream.arrived(asked.step_index)
        if found is not None:
            return tensor_over(found.tensors[0])
        if asked.answer is None and not will_answer:
            error = Unavailable("PEER_GONE", "the line to the peer is gone")
            self._loop.call_soon_threadsafe(self._lose, error)
            raise error
        return None

    def leave(self) -> None:
        """End the stream, on any thread. Harmless twice."""
        self._over = True
        self._loop.call_soon_threadsafe(self.close)

    def close(self) -> None:
        """End the stream. Harmless twice."""
        self._over = True
        if self._taken:
            self._taken = False
            self._workers.leave(self._peer.address)
        if self._stream is not None:
            self._stream.close()

    def _is_answered(self, asked: _AskedStep) -> bool:
        if asked.answer is not None and asked.answer.done():
            return True
        stream = self._stream
        return stream is not None and stream.arrived(asked.step_index) is not None

    def _sent_now(self, step_index: int, inputs: DenoiserInput) -> bool:
        """Send a step on this thread, if the stream has a line; return whether it was sent."""
        stream = self._stream
        if stream is None or not stream.lined:
            return False
        try:
            stream.ask_now(step_index, float(inputs.timesteps[0]), outgoing_tensor(inputs.latents, UNBOUND), step_index)
        except PentimentoError:
            return False  # the event loop meets the same error
        return True

    async def _ask(self, step_index: int, inputs: DenoiserInput, sent: threading.Event) -> Tensor:
        latent = outgoing_tensor(inputs.latents, UNBOUND)
        try:
            stream = self._stream or await self._open(inputs)
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await stream.ask(step_index, float(inputs.timesteps[0]), latent, step_index)
                sent.set()
                found = await stream.take(step_index)
            # Empty if the step is over by now: it was taken as it arrived.
            return tensor_over(found.tensors[0]) if found.tensors else torch.empty(0)
        except TimeoutError:
            raise self._lose(Unavailable("PEER_SILENT", "the peer did not answer in time")) from None
        except PentimentoError as error:
            raise self._lose(error) from None

    async def _open(self, inputs: DenoiserInput) -> HalfStream:
        self._stream = await self._client.open_stream(self._request(inputs), 1, OPEN_TIMEOUT_S)
        self._stream.heard = self._wake
        if self._over:
            self._stream.close()
        return self._stream

    def _lose(self, error: PentimentoError) -> Unavailable:
        if not self._over:
            extra = {"peer": self._peer.worker_id, "reason": error.reason}
            logger.warning("a peer was lost; the image continues without it", extra=extra)
        self.close()
        return Unavailable("PEER_LOST", f"the peer is lost: {error.reason}")

    def _request(self, inputs: DenoiserInput) -> HalfStreamRequest:
        spec, texts = self._order.spec, inputs.conditioning
        return HalfStreamRequest(
            attempt=self._order.attempt,
            model_digest=self._held.model_digest,
            width_px=spec.width_px,
            height_px=spec.height_px,
            step_count=spec.num_inference_steps,
            states=outgoing_tensor(texts.states, UNBOUND),
            pooled=_optional(texts.pooled),
            sizes=_optional(texts.sizes),
            loras=spec.loras,
            controlnets=[half_controlnet(controlnet) for controlnet in self._controlnets],
        )


def half_controlnet(controlnet: RemoteControlNet) -> HalfControlNet:
    """Return a peer's ControlNet with its replicas, the first one last: of equally loaded replicas the peer takes
    another than this worker, and both halves of the residuals are computed in parallel."""
    first, *others = controlnet.addresses
    return HalfControlNet(controlnet.selection, [*others, first], _optional(controlnet.encoded))


def _optional(tensor: Tensor | None) -> OutgoingTensor | None:
    return None if tensor is None else outgoing_tensor(tensor, UNBOUND)
