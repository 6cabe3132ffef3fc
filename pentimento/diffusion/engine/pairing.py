"""Compute one half of the guidance here and the other on a peer (Katz, section 7: latent parallelism).

In each step the peer computes the unconditional half and this worker the conditional one, as a single row. The sampler
advances once both have arrived. A lost, late or busy peer costs only speed: the step is computed whole, and the next
one may use the peer again. Streams of ControlNets serve the rows that they were opened with, so a request with
ControlNets is paired from its first step until a step is computed whole, and not again (ADR 0036).
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pentimento.diffusion.denoising import half_input
from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.families.model import BatchKey, DiffusionModel
from pentimento.domain.errors import PentimentoError
from pentimento.policies.latent_pairing import PairPace

_REMEMBERED_SIZES = 16


@dataclass
class PairedStep:
    """Hold a step with its unconditional half requested from the peer at `asked_at`. `own`, the half computed here, is
    None until it is done; the engine waits for the peer's half until `give_up_at`."""

    step_index: int
    asked_at: float
    own: Tensor | None = None
    own_s: float = 0.0
    own_began_at: float = 0.0
    give_up_at: float = 0.0


class GuidancePairs:
    """Track the paired steps and their halves. Only the engine's thread may use it, except for `pays`."""

    def __init__(self, model: DiffusionModel, monotonic: Callable[[], float]) -> None:
        self._model = model
        self._monotonic = monotonic
        self._steps: dict[int, PairedStep] = {}
        # Keys are the size, and whether the request has ControlNets: its steps wait for them.
        self._paces: OrderedDict[tuple[BatchKey, bool], PairPace] = OrderedDict()

    def pays(self, size: BatchKey) -> bool:
        """Return whether a peer speeds up guided images of that size without ControlNets, by the steps measured so far;
        True before any."""
        pace = self._paces.get((size, False))
        return pace is None or pace.pays

    def ask_ahead(self, job: EngineJob) -> None:
        """Begin the next step right after the last one, if the request is not done and its LoRAs, if any, are in
        effect: the peer starts to compute."""
        request = job.request
        if not job.begun.done and (request.loras is None or job.lora_patch_step is not None):
            self.begin_step(job)

    def begin_step(self, job: EngineJob) -> None:
        """Decide once per step whether a peer computes half of it, and ask the peer."""
        peer, denoising = job.request.peer, job.denoising
        if peer is None or denoising is None or job.decided_step == denoising.state.step_index:
            return
        job.decided_step = denoising.state.step_index
        if not self._may_pair(job):
            return self._be_whole(job)
        if peer.ask(denoising.state.step_index, half_input(self._model, denoising)):
            self._steps[job.number] = PairedStep(denoising.state.step_index, self._monotonic())
            job.be_conditional()
        else:
            self._be_whole(job)

    def awaits(self, job: EngineJob) -> bool:
        """Return whether the job's own half is computed and the peer's has not arrived."""
        step = self._steps.get(job.number)
        return step is not None and step.own is not None

    def computed(self, job: EngineJob, rows: Tensor, seconds: float) -> Tensor | None:
        """Return the prediction for both halves from the `rows` computed here in `seconds`; None while the peer's half
        is in flight."""
        step = self._steps.get(job.number)
        if step is None:
            return rows
        now = self._monotonic()
        # With a ControlNet the step includes the wait for residuals, here and on the peer.
        seconds = now - step.asked_at if job.controlled else seconds
        step.own, step.own_s, step.own_began_at = rows, seconds, now - seconds
        opens_control = job.controlled and not job.paired_steps
        step.give_up_at = now + self._pace(job).patience_s(seconds, opens_control=opens_control)
        return self.joined(job)

    def joined(self, job: EngineJob) -> Tensor | None:
        """Return both halves once they have arrived; None before. If the peer's fails or is late, the job computes the
        whole step."""
        step, peer = self._steps[job.number], job.request.peer
        assert step.own is not None and peer is not None
        try:
            other = peer.take(step.step_index)
        except PentimentoError:
            self._go_alone(job)
            return None
        now = self._monotonic()
        if other is None:
            if now >= step.give_up_at:
                self._go_alone(job)
            return None
        del self._steps[job.number]
        if job.paired_steps:  # the first paired step includes opening the stream
            # Without the wait for other requests on this worker.
            self._pace(job).took_paired(now - max(step.asked_at, step.own_began_at), step.own_s)
        job.paired_steps += 1
        return torch.cat([other.to(step.own), step.own])

    def ran_whole(self, job: EngineJob, seconds: float) -> None:
        """Note a step of one guided image that was computed here, alone in its batch, in `seconds`; with a ControlNet
        the time since the last step counts."""
        self._pace(job).took_whole(job.step_s if job.controlled else seconds)

    def waiting(self) -> list[int]:
        """Return the numbers of the jobs that wait for the peer's half."""
        return [number for number, step in self._steps.items() if step.own is not None]

    def next_deadline(self) -> float | None:
        """Return the earliest time at which the engine stops waiting for a peer; None if it waits for none."""
        return min((step.give_up_at for step in self._steps.values() if step.own is not None), default=None)

    def forget(self, job: EngineJob) -> None:
        """Drop a job that has ended."""
        self._steps.pop(job.number, None)

    def _may_pair(self, job: EngineJob) -> bool:
        """Return whether a peer may compute half of the next step. Its conditioning is fixed when the stream opens:
        not before the LoRAs are in effect."""
        request = job.request
        settled = request.loras is None or job.lora_patch_step is not None
        if not settled or not job.guided or request.alone or job.controlled_whole:
            return False
        return self._pace(job).pays

    def _go_alone(self, job: EngineJob) -> None:
        del self._steps[job.number]
        # The wait for the peer is not part of a whole step.
        job.begins_step(self._monotonic())
        self._be_whole(job)

    def _be_whole(self, job: EngineJob) -> None:
        peer = job.request.peer
        if peer is not None and job.controlled and not job.controlled_whole:
            job.controlled_whole = True
            peer.leave()
        job.be_whole()

    def _pace(self, job: EngineJob) -> PairPace:
        size = replace(job.whole_shape, alone=0), job.controlled
        pace = self._paces.setdefault(size, PairPace())
        self._paces.move_to_end(size)
        while len(self._paces) > _REMEMBERED_SIZES:
            self._paces.popitem(last=False)
        return pace
