"""Apply LoRAs to measured images: from the start in full runs, as late as their bounds allow in thinned ones."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from pentimento.diffusion.loras import Lora, layers_of
from pentimento.diffusion.loras.loading import LoadingLoras
from pentimento.diffusion.painting import PaintingRequest
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.profiles.document import MeasuredAdapter, ordered
from services.unet_worker.adapters.lora_directory import open_lora_directory, read_bounds
from services.unet_worker.profiling.reuse_study import StudyModel

_ROUNDING = 1e-9


@dataclass(frozen=True)
class StudiedLoras:
    """Hold LoRAs at a scale of 1; all apply from `patch_step` on."""

    adapters: tuple[MeasuredAdapter, ...] = ()
    loras: tuple[Lora, ...] = ()
    patch_step: int = 0

    def on_time(self, request: PaintingRequest) -> PaintingRequest:
        """Return the request with them from the start."""
        return self._from_step(request, 0)

    def late(self, request: PaintingRequest) -> PaintingRequest:
        """Return the request with them from `patch_step` on."""
        return self._from_step(request, self.patch_step)

    def _from_step(self, request: PaintingRequest, step: int) -> PaintingRequest:
        if not self.loras:
            return request
        loads = [_here(lora) for lora in self.loras]
        return replace(request, loras=LoadingLoras(loads, [1.0] * len(loads), step, exactly=True))


def open_studied_loras(directory: Path | None, names: Sequence[str], model: StudyModel) -> StudiedLoras:
    """Return the named LoRAs with their bounds; none for no names.

    Raises NotFound for a LoRA that the directory lacks or that does not change the model, and InvalidArgument without a
    directory.
    """
    if not names:
        return StudiedLoras()
    if directory is None:
        raise InvalidArgument.of("loras", "must be the directory of the LoRAs that are named")
    painter = model.painter.model
    bounds = read_bounds((), directory, painter.info.model_digest)
    base = layers_of(painter.info.family, painter.adaptable)
    opened = open_lora_directory(directory, painter.info.model_digest, base, painter.dtype, bounds)
    by_name = {adapter.name: adapter for adapter in opened.adapters}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise NotFound("UNKNOWN_LORA", f"{directory}: no LoRA {missing[0]} that changes {model.spec.model}")
    found = [by_name[name] for name in dict.fromkeys(names)]
    share = min(adapter.latest_start_fraction for adapter in found)
    return StudiedLoras(
        ordered([MeasuredAdapter(adapter.digest, name=adapter.name) for adapter in found]),
        tuple(opened.read(adapter.digest) for adapter in found),
        int(share * model.step_count + _ROUNDING),
    )


def _here(lora: Lora) -> "Future[Lora]":
    loaded: Future[Lora] = Future()
    loaded.set_result(lora)
    return loaded
