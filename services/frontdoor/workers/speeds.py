"""Read profiles of models into the speeds that the dataplane predicts with."""

from collections.abc import Sequence
from pathlib import Path

from pentimento.dataplane.events import ProfilesReceived, SpeedProfile
from pentimento.profiles.costs import BatchProfile, ModelProfile, read_costs


def read_speeds(paths: Sequence[Path]) -> ProfilesReceived | None:
    """Return the speeds measured in profile files, or in directories; None without any.

    Raises InvalidArgument naming file and field.
    """
    found = read_costs(paths)
    return ProfilesReceived(tuple(map(speed_profile, found))) if found else None


def speed_profile(profile: ModelProfile) -> SpeedProfile:
    """Return the speed at the largest size profiled with guidance, or without if there is none.

    The dataplane measures work in pixel steps, so other sizes scale with this one.
    """
    largest = max(profile.batches, key=lambda batch: (batch.guided, batch.width_px * batch.height_px))
    batches = [batch for batch in profile.batches if _shape(batch) == _shape(largest)]
    pixels = largest.width_px * largest.height_px
    seconds = {batch.batch_size: batch.step.mean_s / pixels for batch in batches}
    fixed = [
        size.prepare.mean_s + size.decode.mean_s + size.encode.mean_s
        for size in profile.sizes
        if (size.width_px, size.height_px) == (largest.width_px, largest.height_px)
    ]
    return SpeedProfile(profile.model, tuple(sorted(seconds.items())), fixed[0] if fixed else 0.0)


def _shape(batch: BatchProfile) -> tuple[int, int, bool]:
    return (batch.width_px, batch.height_px, batch.guided)
