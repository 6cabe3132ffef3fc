"""Test how `profile_cost` counts steps."""

from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks.profile_cost import Images
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.domain.generation import GenerationSpec, Scheduler

SPEC = GenerationSpec("a red circle", "", "tiny", 32, 32, 50, 2.0, Scheduler.DDIM, 0)


def test_images_of_both_sides_are_generated_once_and_counted_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    generated: list[DenoisingRequest] = []

    def generate(_: BatchGenerator, requests: Sequence[DenoisingRequest]) -> Iterator[StudiedImage]:
        for request in requests:
            generated.append(request)
            yield StudiedImage(b"%d" % len(generated), {}, torch.zeros(1))

    monkeypatch.setattr(BatchGenerator, "generate", generate)
    latent = torch.ones(1, 4)
    full = DenoisingRequest(SPEC, NoiseStart())
    thinned = DenoisingRequest(SPEC, LatentStart(latent, 10), thinned_steps=(10, 20, 30))
    hit = DenoisingRequest(SPEC, LatentStart(2 * latent, 10))
    generator, images = object.__new__(BatchGenerator), Images()
    with images.counted() as first:
        pictures = [one.png for one in generator.generate([full, thinned])]
    with images.counted() as second:
        pictures += [one.png for one in generator.generate([hit, thinned, full])]

    assert generated == [full, thinned, hit]
    assert pictures == [b"1", b"2", b"3", b"2", b"1"]
    # All steps, three from step ten on, and the last forty; whole: the thinned image from noise takes ten before.
    assert (first.shared, first.whole) == (50 + 3, 50 + 13)
    assert (second.shared, second.whole) == (40 + 3 + 50, 40 + 13 + 50)
