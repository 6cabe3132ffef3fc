"""Apply LoRAs to the denoiser: patched into the weights if all running requests share one set, per row otherwise.

LoHa, LoKr and DoRA have no small factors, so a row cannot have them apart: requests with them run in passes of their
own, with the weights patched for each.
"""

from collections.abc import Sequence

from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.families.model import DiffusionModel
from pentimento.diffusion.families.row_updates import PerSampleAdapters
from pentimento.diffusion.loras.lora import patched_key, set_key
from pentimento.diffusion.loras.patching import RowUpdates, WeightPatch
from pentimento.diffusion.packed_weights import is_packed


class DenoiserAdapters:
    """Hold the denoiser's LoRAs. A patch costs one product per layer once, and nothing in a step; an adapter row
    outside the weights costs a few percent of every step, and lets a batch mix sets. One thread only."""

    def __init__(self, model: DiffusionModel) -> None:
        self._component = next(iter(model.adaptable))
        # Packed weights cannot be changed in place: every set runs by row.
        self._patches = not is_packed(model.denoiser)
        self._patch = WeightPatch(model.denoiser, self._component, model.forget_time_terms)
        self._rows = RowUpdates(model.device, model.dtype)

    def patched(self, job: EngineJob) -> tuple[tuple[str, float], ...]:
        """Return the key of the request's LoRAs if the weights must have them; empty if a row can have them apart."""
        return patched_key(job.adapters, self._component)

    def settle(self, jobs: Sequence[EngineJob]) -> None:
        """Patch the weights with the set that all `jobs` share; restore the base weights if their sets differ. Packed
        weights stay unchanged."""
        if not self._patches:
            return
        sets = {set_key(job.adapters, self._component): job.adapters for job in jobs}
        self._patch.hold(next(iter(sets.values())) if len(sets) == 1 else ())

    def row(self, job: EngineJob) -> PerSampleAdapters | None:
        """Return the request's LoRAs as one adapter row; None if the weights hold its set. Call it only after `settle`
        with the request among its jobs."""
        return None if self._patch.holds(job.adapters) else self._rows.of(job.adapters, self._component)

    def forget_but(self, jobs: Sequence[EngineJob]) -> bool:
        """Drop the adapter rows that none of the jobs uses; return whether any were dropped."""
        return self._rows.forget_but([job.adapter_row for job in jobs])

    def restore(self) -> None:
        """Restore the network's base weights."""
        self._patch.hold(())
