"""Images of an emulated device: recorded ones, or plain ones if there is no recording."""

import colorsys
import json
import struct
from bisect import bisect_left
from dataclasses import dataclass, field

from lab.emulation.fleet_file import EmulatedFleet, EmulatedModel, ImageLabel, labelled
from lab.emulation.png_text import flat_png
from lab.emulation.recording import RecordedModel, Recording, quantile_of, read_recorded_image, read_recording


@dataclass(frozen=True)
class EmulatedImage:
    """`png` carries its label."""

    png: bytes = field(repr=False)
    label: ImageLabel


class EmulatedImages:
    """The images of one model. The same prompt and seed give the same image, confidence and quality on every device."""

    def __init__(self, fleet: EmulatedFleet, model: EmulatedModel) -> None:
        """Reads the recording. NotFound or FailedPrecondition, naming the file, when it cannot be used."""
        self._model = model
        self._deferral = fleet.deferral
        self._recording: Recording | None = None
        if model.recording is not None:
            self._recording = read_recording(model.recording)
            self._recorded: RecordedModel = self._recording.model(model.name)
            kept = [picture for picture in self._recorded.pictures if picture.file is not None]
            self._pngs = [read_recorded_image(model.recording, picture) for picture in kept]

    @property
    def recorded(self) -> bool:
        return self._recording is not None and bool(self._pngs)

    def of(self, prompt: str, seed: int, start_step: int) -> EmulatedImage:
        if self._recording is None:
            label = self._made_up(prompt, seed, start_step)
            return EmulatedImage(labelled(self._plain(prompt, seed), label), label)
        number = self._recording.index_of(prompt, seed)
        picture = self._recorded.pictures[number]
        confidence = self._confidence(prompt, seed) if picture.confidence is None else picture.confidence
        quality = self._kept(picture.clip_score, start_step)
        label = ImageLabel(self._model.name, confidence, quality, start_step, prompt)
        png = self._pngs[number % len(self._pngs)] if self._pngs else self._plain(prompt, seed)
        return EmulatedImage(labelled(png, label), label)

    def _made_up(self, prompt: str, seed: int, start_step: int) -> ImageLabel:
        model, share = self._model, quantile_of(prompt, seed)
        quality = None if model.quality is None else model.quality + model.quality_spread * (share - 0.5)
        kept = self._kept(quality, start_step)
        return ImageLabel(model.name, self._confidence(prompt, seed), kept, start_step, prompt)

    def _confidence(self, prompt: str, seed: int) -> float:
        """Return the confidence at the quantile of prompt and seed: f inverted."""
        share = quantile_of(prompt, seed)
        thresholds, shares = zip(*self._deferral, strict=True)
        above = min(max(bisect_left(shares, share), 1), len(shares) - 1)
        span = shares[above] - shares[above - 1]
        part = (share - shares[above - 1]) / span if span > 0 else 0.0
        found: float = thresholds[above - 1] + min(max(part, 0.0), 1.0) * (thresholds[above] - thresholds[above - 1])
        return found

    def _kept(self, quality: float | None, start_step: int) -> float | None:
        return quality if quality is None or start_step == 0 else quality * self._model.reuse_quality

    def _plain(self, prompt: str, seed: int) -> bytes:
        red, green, blue = colorsys.hsv_to_rgb(quantile_of(prompt, seed), 0.5, 0.9)
        colour = (round(255 * red), round(255 * green), round(255 * blue))
        return flat_png(self._model.width_px, self._model.height_px, colour)


def stand_in_latent(width_px: int, height_px: int) -> bytes:
    """Return a safetensors file of zeros, as large as a Stable Diffusion latent of that size. It is stored and read,
    but never resumed."""
    shape = [1, 4, max(height_px // 8, 1), max(width_px // 8, 1)]
    size = 4 * shape[1] * shape[2] * shape[3]
    header = json.dumps({"latent": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)
