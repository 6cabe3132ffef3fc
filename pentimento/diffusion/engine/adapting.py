"""Whose LoRAs are in the weights: patched in place where all who paint want the same, beside the weights where not."""

from collections.abc import Sequence

from pentimento.diffusion.engine.job import EngineJob
from pentimento.diffusion.families.model import DiffusionModel, PerSampleAdapters
from pentimento.diffusion.loras.bypass import RowUpdates
from pentimento.diffusion.loras.lora import set_key
from pentimento.diffusion.loras.patching import WeightPatch


class DenoiserAdapters:
    """The denoiser's LoRAs. A patch costs one product a layer once, and nothing in a step; a row beside the weights
    costs a few percent of every step, and lets a batch mix. One thread only."""

    def __init__(self, model: DiffusionModel) -> None:
        self._component = next(iter(model.adaptable))
        self._patch = WeightPatch(model.denoiser, self._component, model.forget_time_terms)
        self._rows = RowUpdates(model.device, model.dtype)

    def settle(self, jobs: Sequence[EngineJob]) -> None:
        """Make the weights those of the set that all `jobs` have; the base model's own where they have different
        ones."""
        sets = {set_key(job.adapters, self._component): job.adapters for job in jobs}
        self._patch.hold(next(iter(sets.values())) if len(sets) == 1 else ())

    def row(self, job: EngineJob) -> PerSampleAdapters | None:
        """Return what the request's rows need beside the weights, as one row; None where those hold its set. Only after
        `settle` with the request among others."""
        return None if self._patch.holds(job.adapters) else self._rows.of(job.adapters, self._component)

    def forget_but(self, jobs: Sequence[EngineJob]) -> bool:
        """Forget what lies beside the weights for none of the jobs; return whether there was anything."""
        return self._rows.forget_but([job.adapter_row for job in jobs])

    def restore(self) -> None:
        """Give the network its own weights back."""
        self._patch.hold(())
