"""A picture on the step engine: resolve the start, denoise, finish."""

import asyncio
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pentimento.diffusion.engine import FinishedPainting, StepEngine
from pentimento.diffusion.latents import LatentFormat, latent_to_bytes
from pentimento.diffusion.loras.loading import LoadingLoras
from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import Cancelled, PentimentoError
from pentimento.domain.execution import ExecuteEvent, PlaceYielded, Started, StepProgress
from pentimento.domain.fleet import HeldModel
from pentimento.domain.replay import taken_of, thinned_steps_of
from pentimento.domain.thinned_steps import thinned_note
from pentimento.policies.latent_pairing import can_pair
from pentimento.policies.residual_pipelining import wait_share
from pentimento.wire.tensors import Binding, WireTensor
from pentimento.wire.torch_tensors import tensor_to_wire
from services.unet_worker import metrics
from services.unet_worker.adapters.lora_shelf import LoraShelf
from services.unet_worker.attempts.accounts import Mark
from services.unet_worker.attempts.finishing import FinishedPicture, Finisher
from services.unet_worker.attempts.order import ExecuteOrder, ProgressPace
from services.unet_worker.attempts.runner import PaintedPicture
from services.unet_worker.attempts.starts import ResolvedStart, StartResolver
from services.unet_worker.attempts.yielding import PlaceWatch, StepPace
from services.unet_worker.cache.uploads import Uploads
from services.unet_worker.control.conditions import ConditionEncoder
from services.unet_worker.control.paired_control import PairedControl, of_row
from services.unet_worker.control.remote_control import RemoteControl, RemoteControlNet, remote_controlnets
from services.unet_worker.control.replicas import ControlNetReplicas, lost
from services.unet_worker.pairing.remote_peer import PeerWorkers, RemotePeer

# Residuals of one picture.
PictureControl = RemoteControl | PairedControl

PAIR_NOTE = "painted by a pair"
TRUNCATED_NOTE = "prompt longer than the text encoder takes: its end was ignored"


class PaintingBridge:
    """The engine's news, carried to the event loop. Progress is thinned out (`progress`): every wake-up of the loop
    takes the interpreter away from the denoising loop, and nobody reads more than a few messages a second."""

    def __init__(
        self,
        worker_id: str,
        emit: Callable[[ExecuteEvent], None],
        finisher: Finisher,
        uploads: Uploads | None,
        progress: ProgressPace,
        latent_format: LatentFormat,
        pace: StepPace,
        thinned_steps: tuple[int, ...] = (),
    ) -> None:
        self._pace = pace
        self._thinned_steps = thinned_steps
        self._latent_format = latent_format
        self._worker_id = worker_id
        self._emit = emit
        self._finisher = finisher
        self._uploads = uploads
        self._progress = progress
        self._loop = asyncio.get_running_loop()
        self._step_count = 0
        self._place = PlaceWatch(0, 0, 0.0, pace)
        self._watches_place = True
        # On the event loop: the place is yielded then, if nothing newer is known.
        self._yielding: asyncio.TimerHandle | None = None
        self._yielded = False
        self._preview_busy = False
        self.done: asyncio.Future[FinishedPainting] = self._loop.create_future()

    def started(self, first_step: int, step_count: int) -> None:
        self._step_count = step_count
        now = time.monotonic()
        self._place = PlaceWatch(first_step, step_count, now, self._pace, self._thinned_steps)
        self._loop.call_soon_threadsafe(self._emit, Started(self._worker_id, first_step, step_count))
        self._watch_place(first_step, now)

    def stepped(self, step: int, predicted_clean: Tensor | None) -> None:
        previewed = predicted_clean is not None and not self._preview_busy
        if predicted_clean is not None and previewed:
            self._start_preview(step, predicted_clean)
        now = time.monotonic()
        self._watch_place(step, now)
        if self._progress.sends(step, self._step_count, now, previewed=previewed):
            self._loop.call_soon_threadsafe(self._emit, StepProgress(step, self._step_count))

    def _watch_place(self, step: int, now: float) -> None:
        after_s = self._place.yields_in_s(step, now) if self._watches_place else None
        if after_s is not None:
            self._watches_place = after_s > 0.0
            self._loop.call_soon_threadsafe(self._yield_in, after_s)

    def _yield_in(self, after_s: float) -> None:
        """Of several, the last one holds."""
        if self._yielding is not None:
            self._yielding.cancel()
        if after_s > 0.0:
            self._yielding = self._loop.call_later(after_s, self._yield_in, 0.0)
        elif not self._yielded:
            self._yielded = True
            self._emit(PlaceYielded())

    def _start_preview(self, step: int, predicted_clean: Tensor) -> None:
        """Previews never pile up: one that falls due while the last is still being made is left out."""
        self._preview_busy = True

        def made(png: bytes | None) -> None:
            self._preview_busy = False
            if png:
                self._emit(StepProgress(step, self._step_count, png))

        future = self._finisher.preview(predicted_clean)
        future.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(
                made, None if done.cancelled() or done.exception() else done.result()
            )
        )

    def captured(self, step: int, sigma: float, latent: Tensor) -> None:
        assert self._uploads is not None
        self._uploads.add_latent(step, sigma, lambda: _finite_latent_bytes(latent, self._latent_format))

    def finished(self, painting: FinishedPainting) -> None:
        self._loop.call_soon_threadsafe(self._settle, painting)

    def failed(self, error: PentimentoError) -> None:
        self._loop.call_soon_threadsafe(self._settle, error)

    def _settle(self, outcome: FinishedPainting | PentimentoError) -> None:
        if self.done.done():
            return
        if isinstance(outcome, FinishedPainting):
            self.done.set_result(outcome)
        else:
            self.done.set_exception(outcome)


class EngineModelRunner:
    """Paints with one loaded model; `watts` gives the device's mean power between two times, where it is known;
    `latent_format` is what captured latents are stored as; `replicas` are where ControlNets are served, `conditions`
    makes latents of what those are told that see such. See `runner.ModelRunner`."""

    def __init__(
        self,
        worker_id: str,
        held: HeldModel,
        engine: StepEngine,
        finisher: Finisher,
        starts: StartResolver,
        progress_interval_s: float,
        watts: Callable[[float, float], float | None] = lambda since, until: None,
        latent_format: LatentFormat = LatentFormat.EXACT,
        replicas: ControlNetReplicas | None = None,
        loras: LoraShelf | None = None,
        conditions: ConditionEncoder | None = None,
        peers: PeerWorkers | None = None,
    ) -> None:
        self._conditions = conditions
        self._peers = peers
        self._latent_format = latent_format
        self._replicas = replicas
        self._worker_id = worker_id
        self._held = held
        self._engine = engine
        self._finisher = finisher
        self._starts = starts
        self._loras = loras
        self._progress_interval_s = progress_interval_s
        self._watts = watts
        self._pace = StepPace()

    async def paint(
        self,
        order: ExecuteOrder,
        uploads: Uploads | None,
        emit: Callable[[ExecuteEvent], None],
        accepted_at: float,
        deadline: float | None,
    ) -> PaintedPicture:
        # Asked for first: they load while the start is fetched.
        loras = self._loras.source(order.spec, order.route) if self._loras is not None else None
        controlnets = await self._controlnets_of(order)
        peer = self._peer_of(order, controlnets)
        control = self._control_of(order, controlnets, paired=peer is not None)
        try:
            start = await self._starts.resolve(order.spec, order.route)
            painting = await self._denoise(order, start, uploads, emit, deadline, control, loras, peer)
        finally:
            if peer is not None:
                peer.close()
            if control is not None:
                control.close()
        if uploads is not None and painting.lora_patch_step is not None:
            uploads.adapters_from_step = painting.lora_patch_step
        picture = await self._finisher.finish(
            painting.latent, order.image_format, uploads is not None, encoding_quality=order.encoding_quality
        )
        truncated = TRUNCATED_NOTE if painting.prompt_truncated else ""
        notes = (start.note, truncated, _pair_note(order, painting), _thinned_note(order, painting))
        device_seconds = painting.device_s + picture.decoded_at - picture.started_at
        return PaintedPicture(
            held=self._held,
            image=picture.image,
            digest=picture.digest,
            png=picture.png,
            marks=_marks(accepted_at, painting, picture),
            ended_at=picture.encoded_at,
            steps_run=painting.taken_count,
            steps_saved=start.saved_steps,
            device_seconds=device_seconds,
            energy_joules=self._joules(painting, picture, device_seconds),
            notes=tuple(note for note in notes if note),
            bad_donor_reason=start.bad_donor_reason,
            final_latents=_final_latents(order, painting) if order.return_latents else None,
            lora_patch_step=painting.lora_patch_step,
            residual_wait_share=_wait_share(painting, control) if control is not None else None,
            thinned_steps=painting.thinned_steps,
        )

    async def _controlnets_of(self, order: ExecuteOrder) -> tuple[RemoteControlNet, ...]:
        """Raises Unavailable where one of its ControlNets is served nowhere."""
        if not order.spec.controlnets:
            return ()
        if self._conditions is None:
            raise lost(order.spec.controlnets[0].name)
        first_step = self._starts.own_first_step(order.spec)
        named = remote_controlnets(order.spec, order.controlnet_endpoints, first_step)
        return await self._conditions.encoded(named, order.spec)

    def _control_of(
        self, order: ExecuteOrder, controlnets: Sequence[RemoteControlNet], *, paired: bool
    ) -> PictureControl | None:
        if not controlnets or self._replicas is None:
            return None
        parts = (self._replicas, self._engine.wake)
        whole = RemoteControl(order, self._held, controlnets, *parts)
        return (
            PairedControl(RemoteControl(order, self._held, of_row(controlnets, 1), *parts), whole) if paired else whole
        )

    def _peer_of(self, order: ExecuteOrder, controlnets: Sequence[RemoteControlNet]) -> RemotePeer | None:
        """None where it is painted alone."""
        if order.peer is None or self._peers is None or not can_pair(order.spec, order.route):
            return None
        unconditional = of_row(controlnets, 0)
        return RemotePeer(order, self._held, order.peer, self._peers, self._engine.wake, unconditional)

    def _joules(self, painting: FinishedPainting, picture: FinishedPicture, device_seconds: float) -> float | None:
        """The device's power while the picture was made, for the picture's share of its time."""
        watts = self._watts(painting.started_at, picture.decoded_at)
        return watts * device_seconds if watts is not None else None

    async def _denoise(
        self,
        order: ExecuteOrder,
        start: ResolvedStart,
        uploads: Uploads | None,
        emit: Callable[[ExecuteEvent], None],
        deadline: float | None,
        control: PictureControl | None,
        loras: LoadingLoras | None,
        peer: RemotePeer | None,
    ) -> FinishedPainting:
        request = PaintingRequest(
            order.spec,
            start.start,
            uploads.steps if uploads else frozenset(),
            order.preview_interval_steps,
            deadline,
            control,
            loras=loras,
            alone=bool(order.route.replay_of),
            peer=peer,
            thinned_steps=thinned_steps_of(order.route, start.saved_steps),
        )
        bridge = PaintingBridge(
            self._worker_id,
            emit,
            self._finisher,
            uploads,
            order.progress_pace(self._progress_interval_s),
            self._latent_format,
            self._pace,
            request.thinned_steps,
        )
        ticket = self._engine.submit(request, bridge)
        if taken_of(order.route.start, start.saved_steps) == order.route.start:
            order.asked_steps.listen(ticket.thin)
        try:
            return await bridge.done
        finally:
            ticket.stop(Cancelled("CANCELLED", "the attempt was stopped"))


def _pair_note(order: ExecuteOrder, painting: FinishedPainting) -> str:
    """Empty where no step was paired. Perhaps not all were: a peer is lost, or late, and the picture goes on."""
    if order.peer is None or not painting.paired_step_count:
        return ""
    metrics.PAIRED_STEPS.inc(painting.paired_step_count)
    return (
        f"{PAIR_NOTE}: {painting.paired_step_count} of {painting.taken_count} steps with {order.peer.worker_id[:100]}"
    )


def _thinned_note(order: ExecuteOrder, painting: FinishedPainting) -> str:
    return thinned_note(painting.thinned_steps, order.spec.num_inference_steps)


def _finite_latent_bytes(latent: Tensor, latent_format: LatentFormat) -> bytes | None:
    """None for what must not enter a cache."""
    return latent_to_bytes(latent, latent_format) if torch.isfinite(latent).all() else None


def _marks(accepted_at: float, painting: FinishedPainting, picture: FinishedPicture) -> tuple[Mark, ...]:
    return (
        ("start", accepted_at, painting.queued_at),
        ("queue", painting.queued_at, painting.started_at),
        ("prepare", painting.started_at, painting.prepared_at),
        ("denoise", painting.prepared_at, painting.finished_at),
        ("decode", picture.started_at, picture.decoded_at),
        ("encode", picture.decoded_at, picture.encoded_at),
    )


def _wait_share(painting: FinishedPainting, control: PictureControl) -> float | None:
    """None of a pair's picture: a worker's own steps are longer, and wait for both rows."""
    if painting.paired_step_count:
        return None
    seconds = painting.finished_at - painting.prepared_at
    return wait_share(painting.residual_waits_s, control.synchronous_steps(), max(painting.taken_count, 1), seconds)


def _final_latents(order: ExecuteOrder, painting: FinishedPainting) -> WireTensor:
    attempt = order.attempt
    binding = Binding(
        attempt.request_id, attempt.fencing_token, painting.step_count, "latent", order.route.model_digest
    )
    return tensor_to_wire(painting.latent, binding)
