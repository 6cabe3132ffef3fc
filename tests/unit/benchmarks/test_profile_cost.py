"""Test how `profile_cost` counts steps, and the profiles that it records."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.profile_cost import Images, write_record
from benchmarks.suites.earning import measured_profiles
from pentimento.diffusion.denoising import DenoisingRequest, LatentStart, NoiseStart
from pentimento.diffusion.image_generation import BatchGenerator, StudiedImage
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.profiles.document import ProfileKind
from pentimento.profiles.rules import ThresholdRule
from tests.support.profiles import STEPS_PROFILE, changed, thinned_row

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


def test_recorded_profile_has_rows_in_order_and_by_steps(tmp_path: Path) -> None:
    rows = tuple(thinned_row(0, count, ThresholdRule.LOWER_BOUND) for count in (15, 10, 12))
    write_record(tmp_path / "record.json", {ProfileKind.STEPS: (changed(STEPS_PROFILE, rows=rows), [900, 1300, 1700])})

    found = measured_profiles(tmp_path / "record.json")[ProfileKind.STEPS]

    taken = [[row.place("taken_count") for row in found.after(steps).rows] for steps in (899, 900, 1_500, 1_700)]
    assert taken == [[], [15], [15, 10], [15, 10, 12]]
