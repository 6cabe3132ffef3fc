"""Supply the engine with residuals for one request: from its ControlNets, on their replicas, all in parallel."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import is_not
from typing import NamedTuple

from torch import Tensor

from pentimento.clients.controlnet import ResidualStream, ResidualStreamRequest
from pentimento.diffusion.controlnets import ControlSetting
from pentimento.diffusion.families.model import ControlResiduals, DenoiserInput
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.execution import ControlNetEndpoint
from pentimento.domain.fleet import HeldModel
from pentimento.domain.generation import ControlNetSelection, GenerationSpec
from pentimento.policies.residual_pipelining import ResidualSteps
from pentimento.tensors.device import outgoing_tensor
from pentimento.tensors.outgoing import OutgoingTensor
from pentimento.tensors.receiving import ReceivedTensors
from pentimento.wire.tensors import UNBOUND
from services.unet_worker.attempts.order import ExecuteOrder
from services.unet_worker.control.replayed_stream import ReplayedStream
from services.unet_worker.control.replicas import ControlNetReplicas, StreamPlace, addresses_of

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


class _StepToAsk(NamedTuple):
    step_index: int
    timestep: float
    latents: OutgoingTensor


@dataclass(frozen=True)
class _LinedStep:
    """Hold a step that the engine's thread sent by lines, the stream of each ControlNet by place, and in `found` the
    answers so far."""

    step: _StepToAsk
    inputs: DenoiserInput
    sent_on: Mapping[int, ResidualStream]
    found: dict[int, ReceivedTensors]

    @property
    def open_places(self) -> list[int]:
        """Return the places with missing answers."""
        return [place for place in self.sent_on if place not in self.found or self.found[place].awaited_count]


class RemoteControl:
    """Supply residuals as a `ControlSource`. The engine's thread calls `ask` and `take`, and sends steps by
    lines; the event loop opens streams and replaces lost ones, and calls `wake` when residuals have arrived. A single
    row of latents is the conditional one, unless `unconditional`. Create and close it on the event loop."""

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
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._streams: list[ReplayedStream] = []
        # One for each ControlNet, once the first step is known.
        self._steps: tuple[ResidualSteps, ...] = ()
        # Answers by step, and by the ControlNet's place.
        self._asked: dict[int, Future[dict[int, ReceivedTensors]] | _LinedStep] = {}
        # The last step that the event loop may still have to send.
        self._unsent: Future[dict[int, ReceivedTensors]] | None = None
        # The last summed answers, and their sum.
        self._summed: tuple[list[ReceivedTensors], ControlResiduals] | None = None
        self._closed = False
        for controlnet in self._controlnets:
            replicas.mention(controlnet.addresses)

    def ask(self, step_index: int, inputs: DenoiserInput) -> None:
        """Request residuals of this step from the ControlNets that use them, in this step or the next. The first step
        opens all streams."""
        opens = not self._steps
        self._steps = self._steps or self._steps_from(step_index)
        self._asked = {step: asked for step, asked in self._asked.items() if step >= step_index - 1}
        asked = [place for place, steps in enumerate(self._steps) if steps.is_asked_in(step_index)]
        if asked or opens:
            self._ask_all(step_index, inputs, asked)

    def _ask_all(self, step_index: int, inputs: DenoiserInput, places: Sequence[int]) -> None:
        """Send by lines from this thread, if they are open and no earlier step waits to be sent."""
        step = _StepToAsk(step_index, float(inputs.timesteps[0]), outgoing_tensor(inputs.latents, UNBOUND))
        sent_on: dict[int, ResidualStream] = {}
        if self._streams and (self._unsent is None or self._unsent.done()):
            for place in places:
                stream = self._streams[place].ask_now(*step, self._keeps_from(place, step_index))
                if stream is not None:
                    sent_on[place] = stream
        if places and len(sent_on) == len(places):
            self._asked[step_index] = _LinedStep(step, inputs, sent_on, {})
            return
        self._leave_to_loop()
        self._asked[step_index] = self._unsent = self._ask_on_loop(step, inputs, places, sent_on)

    def _ask_on_loop(
        self, step: _StepToAsk, inputs: DenoiserInput, places: Sequence[int], sent_on: Mapping[int, ResidualStream]
    ) -> "Future[dict[int, ReceivedTensors]]":
        asking = asyncio.run_coroutine_threadsafe(self._ask(step, inputs, places, sent_on), self._loop)
        asking.add_done_callback(lambda _: self._wake())
        return asking

    def _leave_to_loop(self) -> None:
        """Move all unanswered steps that went by lines to the event loop, in order: it requests them again where their
        streams are lost."""
        for step_index, asked in self._asked.items():
            if isinstance(asked, _LinedStep) and asked.open_places:
                self._unsent = self._ask_on_loop(asked.step, asked.inputs, list(asked.sent_on), asked.sent_on)
                self._asked[step_index] = self._unsent

    def _keeps_from(self, place: int, step_index: int) -> int:
        used = self._steps[place].used_in(step_index)
        return step_index if used is None else used

    def take(self, step_index: int) -> ControlResiduals | None:
        """Return the sum of the step's residuals received so far, valid until the next `ask`; None while a ControlNet
        has sent nothing. Raises errors that end the request."""
        if not self._hear():
            self._leave_to_loop()
        used = [(place, steps.used_in(step_index)) for place, steps in enumerate(self._steps)]
        answers = [self._answer(place, step) for place, step in used if step is not None]
        there = [answer for answer in answers if answer is not None]
        if len(there) < len(answers):
            return None
        # Identical parts: nothing has arrived since.
        if self._summed is None or len(self._summed[0]) != len(there) or any(map(is_not, self._summed[0], there)):
            self._summed = (there, self._replicas.summing(there))
        return self._summed[1]

    def _hear(self) -> bool:
        """Collect the answers of steps that went by lines; return False if an answer will not arrive."""
        goes_on = True
        for step_index, asked in self._asked.items():
            if not isinstance(asked, _LinedStep):
                continue
            for place in asked.open_places:
                # Checked first: an answer that arrived before its stream was lost still counts.
                will_answer = self._streams[place].will_answer(asked.sent_on[place])
                found = asked.sent_on[place].arrived(step_index)
                if found is not None:
                    asked.found[place] = found
                goes_on = goes_on and (place not in asked.open_places or will_answer)
        return goes_on

    def _answer(self, place: int, step_index: int) -> ReceivedTensors | None:
        asked = self._asked[step_index]
        if isinstance(asked, _LinedStep):
            return asked.found.get(place)
        if asked.done():
            return asked.result()[place]
        return self._streams[place].arrived(step_index) if place < len(self._streams) else None

    def _steps_from(self, first_step: int) -> tuple[ResidualSteps, ...]:
        step_count, pipelined_from = self._order.spec.num_inference_steps, self._order.route.pipelined_from_step
        acting = (controlnet.setting.acting_steps(first_step, step_count) for controlnet in self._controlnets)
        return tuple(ResidualSteps(steps, pipelined_from) for steps in acting)

    def synchronous_steps(self) -> set[int]:
        """Return the steps of the request that use their own residuals."""
        acting = ((step, steps) for steps in self._steps for step in steps.acting)
        return {step for step, steps in acting if steps.used_in(step) == step}

    def close(self) -> None:
        """Close the streams. Harmless twice."""
        self._closed = True
        for stream in self._streams:
            stream.close()

    async def _ask(
        self,
        step: "_StepToAsk",
        inputs: DenoiserInput,
        places: Sequence[int],
        sent_on: Mapping[int, ResidualStream],
    ) -> dict[int, ReceivedTensors]:
        if not self._streams and not self._closed:
            self._open(inputs)
        answers = (self._residuals(place, step, sent_on.get(place)) for place in places)
        return dict(zip(places, await asyncio.gather(*answers), strict=True))

    async def _residuals(self, place: int, step: "_StepToAsk", sent_on: ResidualStream | None) -> ReceivedTensors:
        keeps_from = self._keeps_from(place, step.step_index)
        with naming_controlnet(place):
            return await self._streams[place].residuals(*step, keeps_from, sent_on)

    def _open(self, inputs: DenoiserInput) -> None:
        beside: Counter[str] = Counter()
        for controlnet in self._controlnets:
            name, request = controlnet.selection.name, self._request(controlnet, inputs)
            place = StreamPlace(name, controlnet.addresses, self._replicas, beside)
            self._streams.append(ReplayedStream(name, place, request, self._wake))

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
            pooled=_optional(texts.pooled),
            sizes=_optional(texts.sizes),
            encoded=_optional(controlnet.encoded),
            alone=bool(order.route.replay_of),
            unconditional=self._unconditional,
        )


def _optional(tensor: Tensor | None) -> OutgoingTensor | None:
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
        """Return the requested residuals, as `RemoteControl.take` does."""
        return self._asked.take(step_index)

    def synchronous_steps(self) -> set[int]:
        """Return the steps that use their own residuals, among those requested with both rows."""
        return self._whole.synchronous_steps()

    def close(self) -> None:
        """End the streams. Harmless twice."""
        self._conditional.close()
        self._whole.close()
