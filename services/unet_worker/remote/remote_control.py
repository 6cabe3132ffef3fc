"""Supply the engine with residuals for one request: from its ControlNets, on their replicas, all in parallel."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import is_not

import torch
from torch import Tensor

from pentimento.clients.controlnet import ResidualStreamRequest
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.engine import StepEngine
from pentimento.diffusion.families import DiffusionModel
from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from pentimento.diffusion.images import condition_of_size
from pentimento.domain.errors import InvalidArgument, PentimentoError, ResourceExhausted
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import ControlNetSelection, GenerationSpec, Preprocessor
from pentimento.policies.residual_pipelining import ResidualSteps
from pentimento.tensors.cuda import outgoing_tensor
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.remote.replayed_stream import Patience, ReplayedStream
from services.unet_worker.remote.replicas import ControlNetReplicas, StreamPlace, addresses_of, lost

logger = logging.getLogger(__name__)


# For each step: on other replicas, or on the same one if there is no other.
MAX_REPLAYS = 2
# While all replicas are full, at intervals of `FULL_WAIT_S`; after the last the request fails with a retryable error.
MAX_FULL_TRIES = 100
OPEN_TIMEOUT_S = 60.0
# Prefixes the fields of a ControlNet that is opened or encoded by itself.
_OWN_FIELDS = "controlnet."


@dataclass(frozen=True)
class RemoteControlNet:
    """Describe one ControlNet of a request: its selection, its acting steps, its addresses, and its condition as a
    latent if it sees latents."""

    selection: ControlNetSelection
    setting: ControlSetting
    addresses: tuple[str, ...]
    encoded: Tensor | None = None


def remote_controlnets(
    spec: GenerationSpec, endpoints: Sequence[ControlNetEndpoint], first_step: int
) -> tuple[RemoteControlNet, ...]:
    """Return a request's ControlNets in its order, with shares of the whole schedule; the request's own shares refer to
    the steps from `first_step` on, which its own image sets. Raises Unavailable (CONTROLNET_LOST) for a ControlNet
    without a replica, InvalidArgument for a scale or shares that are out of bounds."""
    found = []
    for index, selection in enumerate(spec.controlnets):
        asked = ControlSetting(selection.conditioning_scale, selection.start_fraction, selection.end_fraction)
        asked.check(f"spec.controlnets[{index}]")
        setting = asked.over_steps_from(first_step, spec.num_inference_steps) if first_step else asked
        acting = replace(selection, start_fraction=setting.start_fraction, end_fraction=setting.end_fraction)
        found.append(RemoteControlNet(acting, setting, addresses_of(selection, endpoints)))
    return tuple(found)


@contextmanager
def naming_controlnet(place: int) -> Iterator[None]:
    """Name the request's ControlNet of that place in InvalidArgument errors of the block:
    `spec.controlnets[1].conditioning_image`."""
    try:
        yield
    except InvalidArgument as error:
        fields = [(violation.field, violation.description) for violation in error.violations]
        if not fields or not fields[0][0].startswith(_OWN_FIELDS):
            raise
        field, description = fields[0]
        raise InvalidArgument.of(f"spec.controlnets[{place}].{field.removeprefix(_OWN_FIELDS)}", description) from None


class RemoteControl:
    """Supply residuals as a `ControlSource`, with `wake` called when more have arrived. A single row of latents is the
    conditional one, unless `unconditional`. Create and close it on the event loop."""

    def __init__(
        self,
        order: ExecuteOrder,
        held: HeldModel,
        controlnets: Sequence[RemoteControlNet],
        replicas: ControlNetReplicas,
        wake: Callable[[], None],
        *,
        unconditional: bool = False,
    ) -> None:
        self._unconditional = unconditional
        self._order = order
        self._held = held
        self._controlnets = tuple(controlnets)
        self._replicas = replicas
        beside: Counter[str] = Counter()
        self._streams = [
            ReplayedStream(
                StreamPlace(one.selection.name, one.addresses, replicas, beside), _patience(one.selection.name), wake
            )
            for one in self._controlnets
        ]
        # One for each ControlNet, once the first step is known.
        self._steps: tuple[ResidualSteps, ...] = ()
        # The last summed answers, and their sum.
        self._summed: tuple[list[ReceivedTensors], ControlResiduals] | None = None
        for controlnet in self._controlnets:
            replicas.mention(controlnet.addresses)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Request residuals of this step from the ControlNets that use them, in this step or the next. The first step
        opens all streams."""
        if not self._steps:
            self._steps = self._steps_from(step_index)
            for stream, controlnet in zip(self._streams, self._controlnets, strict=True):
                stream.open(self._request(controlnet, inputs))
        latents = outgoing_tensor(inputs.latents, UNBOUND)
        for stream, steps in zip(self._streams, self._steps, strict=True):
            if steps.is_asked_in(step_index):
                used = steps.used_in(step_index)
                stream.ask(step_index, float(inputs.timesteps[0]), latents, step_index if used is None else used)

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the sum of the step's residuals received so far, valid until the next `ask`; None while a ControlNet
        has sent nothing. Raises errors that end the request."""
        used = [(place, steps.used_in(step_index)) for place, steps in enumerate(self._steps)]
        taken = [self._taken(place, step) for place, step in used if step is not None]
        answers = [answer for answer in taken if answer is not None]
        if len(answers) < len(taken):
            return None
        # Identical parts: nothing has arrived since.
        if self._summed is None or len(self._summed[0]) != len(answers) or any(map(is_not, self._summed[0], answers)):
            self._summed = (answers, self._replicas.summing(answers))
        return self._summed[1]

    def _taken(self, place: int, step_index: int) -> ReceivedTensors | None:
        with naming_controlnet(place):
            return self._streams[place].take(step_index)

    def _steps_from(self, first_step: int) -> tuple[ResidualSteps, ...]:
        step_count, pipelined_from = self._order.spec.num_inference_steps, self._order.route.pipelined_from_step
        acting = (controlnet.setting.acting_steps(first_step, step_count) for controlnet in self._controlnets)
        return tuple(ResidualSteps(steps, pipelined_from) for steps in acting)

    def synchronous_steps(self) -> set[int]:
        """Return the steps of the request that use their own residuals."""
        acting = ((step, steps) for steps in self._steps for step in steps.acting)
        return {step for step, steps in acting if steps.used_in(step) == step}

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _request(self, controlnet: RemoteControlNet, inputs: DenoiserInput) -> ResidualStreamRequest:
        order, spec, texts = self._order, self._order.spec, inputs.conditioning
        channels, height, width = inputs.latents.shape[1:]
        return ResidualStreamRequest(
            attempt=order.attempt,
            controlnet=controlnet.selection,
            base_model_digest=self._held.model_digest,
            base_model_family=self._held.family,
            width_px=spec.width_px,
            height_px=spec.height_px,
            step_count=spec.num_inference_steps,
            latent_dims=(channels, height, width),
            states=outgoing_tensor(texts.states, UNBOUND),
            pooled=optional_tensor(texts.pooled),
            sizes=optional_tensor(texts.sizes),
            encoded=optional_tensor(controlnet.encoded),
            alone=bool(order.route.replay_of),
            unconditional=self._unconditional,
        )


def _patience(name: str) -> Patience:
    def ended(cause: PentimentoError) -> PentimentoError:
        if isinstance(cause, ResourceExhausted):
            logger.warning("every replica of a ControlNet is full: %s", cause.reason)
        return lost(name, cause)

    return Patience(MAX_REPLAYS, MAX_FULL_TRIES, OPEN_TIMEOUT_S, ended)


def optional_tensor(tensor: Tensor | None) -> OutgoingTensor | None:
    return None if tensor is None else outgoing_tensor(tensor, UNBOUND)


def of_row(controlnets: Sequence[RemoteControlNet], row: int) -> tuple[RemoteControlNet, ...]:
    """Return the ControlNets of a guided request for one row: 0 for the unconditional one, 1 for the conditional
    one."""
    return tuple(
        controlnet if controlnet.encoded is None else replace(controlnet, encoded=controlnet.encoded[row : row + 1])
        for controlnet in controlnets
    )


class PairedControl:
    """Supply residuals as a `ControlSource`. A stream serves the rows that it was opened with, so the conditional row
    and both rows have separate streams; the first step with both rows ends the former. Create and close it on the event
    loop."""

    def __init__(self, conditional: RemoteControl, whole: RemoteControl) -> None:
        self._conditional = conditional
        self._whole = whole
        self._asked = conditional
        self._loop = asyncio.get_running_loop()

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Request the residuals of a step for the given rows. From the first step with both rows on, both are
        requested."""
        if self._asked is self._conditional and inputs.latents.shape[0] > 1:
            self._asked = self._whole
            # First: these streams may hold the only free places of their replicas.
            self._loop.call_soon_threadsafe(self._conditional.close)
        self._asked.ask(step_index, inputs)

    def take(self, step_index: int) -> ControlResiduals | None:
        return self._asked.take(step_index)

    def synchronous_steps(self) -> set[int]:
        """Return the steps that use their own residuals, among those requested with both rows."""
        return self._whole.synchronous_steps()

    def close(self) -> None:
        self._conditional.close()
        self._whole.close()


_SEE_LATENTS = ("stable_diffusion_3",)
ASK_TIMEOUT_S = 5.0


def controlnets_see_latents(family: str) -> bool:
    return family in _SEE_LATENTS


class ConditionEncoder:
    """Encode with the base model's autoencoder, on the engine's thread between two steps. On the event loop only."""

    def __init__(self, model: DiffusionModel, engine: StepEngine, replicas: ControlNetReplicas) -> None:
        self._model = model
        self._engine = engine
        self._replicas = replicas
        # Whether the latent is without the autoencoder's shift, by the ControlNet's name and digest.
        self._unshifted: dict[tuple[str, str], bool] = {}

    async def encoded(
        self, controlnets: Sequence[RemoteControlNet], spec: GenerationSpec
    ) -> tuple[RemoteControlNet, ...]:
        """Return the ControlNets; those for latents receive theirs (rows, channels, height, width), with a row for each
        half of the guidance. Noise is drawn from the request's seed, for one ControlNet after the other.

        Raises InvalidArgument for an invalid image or one of another size than the request's, Unavailable
        (CONTROLNET_LOST) if no replica reports the input of a ControlNet.
        """
        if not controlnets_see_latents(self._model.info.family):
            return tuple(controlnets)
        generator = torch.Generator().manual_seed(spec.seed)
        found = []
        for place, controlnet in enumerate(controlnets):
            with naming_controlnet(place):
                found.append(await self._with_latent(controlnet, spec, generator))
        return tuple(found)

    async def _with_latent(
        self, controlnet: RemoteControlNet, spec: GenerationSpec, generator: torch.Generator
    ) -> RemoteControlNet:
        selection, rows = controlnet.selection, 2 if self._model.info.is_guided(spec.guidance_scale) else 1
        unshifted = await self._is_unshifted(controlnet)
        image, size = selection.conditioning_image, (spec.width_px, spec.height_px)
        if selection.preprocessor is Preprocessor.DEPTH:
            limit = "must be edges or empty: the depth model is with ControlNets that see images"
            raise InvalidArgument.of("controlnet.preprocessor", limit)
        pixels = await asyncio.to_thread(condition_of_size, image, *size)
        if selection.preprocessor is Preprocessor.EDGES:
            from pentimento.diffusion.controlnets.edges import edges  # few requests want them

            pixels = await asyncio.to_thread(edges, pixels)

        def encode() -> Tensor:
            return self._model.condition(pixels, rows, generator, unshifted=unshifted)

        encoded = await asyncio.wrap_future(self._engine.call(encode))
        # The service sees only the latent.
        seen = replace(selection, conditioning_image=b"", preprocessor=None)
        return replace(controlnet, selection=seen, encoded=encoded)

    async def _is_unshifted(self, controlnet: RemoteControlNet) -> bool:
        name, digest = controlnet.selection.name, controlnet.selection.digest
        if (name, digest) not in self._unshifted:
            self._unshifted[(name, digest)] = await self._ask(controlnet)
        return self._unshifted[(name, digest)]

    async def _ask(self, controlnet: RemoteControlNet) -> bool:
        name, digest = controlnet.selection.name, controlnet.selection.digest
        for address in controlnet.addresses:
            try:
                status = await self._replicas.at(address).client.status(ASK_TIMEOUT_S)
            except PentimentoError:
                continue  # the next one may know
            # A restarted replica may have other weights under that name.
            found = [info.unshifted for info in status.controlnets if info.name == name and digest in ("", info.digest)]
            if found:
                return found[0]
        raise lost(name)
