"""Test images of emulated devices: the same for one prompt and seed, recorded ones if there are any."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.emulation.emulated_worker.images import EmulatedImages, stand_in_latent
from lab.emulation.emulated_worker.model import check_profiled, costs_on, decoding_share, emulated_held_model
from lab.emulation.fleet_file import EmulatedDevices, EmulatedFleet, EmulatedModel, label_of
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.generation import GenerationSpec, Scheduler
from pentimento.profiles.costs import BatchProfile, Cost, ModelProfile, SizeProfile

DEFERRAL = ((0.0, 0.0), (0.5, 0.2), (1.0, 1.0))
ONCE = SizeProfile(64, 64, Cost(0.01, 0.0, 3), Cost(0.02, 0.0, 3), Cost(0.03, 0.0, 3))
BATCHES = tuple(BatchProfile(64, 64, True, size, (Cost(0.1 * size, 0.0, 3),)) for size in (2, 4))
PROFILE = ModelProfile("light", "sha256:0", "gpu", "float16", 1, "off", 50, (ONCE,), BATCHES)
MODEL = EmulatedModel("light", PROFILE, 64, 64, 50, 3.0, quality=0.5, quality_spread=0.2, reuse_quality=0.9)
DEVICES = EmulatedDevices("small", 1, ("light",), speed=2.0)
FLEET = EmulatedFleet(Path("fleet.toml"), (MODEL,), (DEVICES,), deferral=DEFERRAL)


def test_images_repeat_by_request() -> None:
    one, same, other = (EmulatedImages(FLEET, MODEL).of("a red circle", seed, 0) for seed in (1, 1, 2))

    assert one == same
    assert one.png != other.png
    assert label_of(one.png) == one.label


def test_confidences_follow_the_deferral_curve() -> None:
    images = EmulatedImages(FLEET, MODEL)

    confidences = [images.of("a red circle", seed, 0).label.confidence for seed in range(2000)]

    assert sum(found <= 0.5 for found in confidences) / 2000 == pytest.approx(0.2, abs=0.03)
    assert 0.0 <= min(confidences) <= max(confidences) <= 1.0


def test_qualities_have_their_mean_and_rise_with_confidence() -> None:
    images = EmulatedImages(FLEET, MODEL)

    labels = sorted((images.of("x", seed, 0).label for seed in range(2000)), key=lambda label: label.confidence)

    qualities = [label.quality for label in labels if label.quality is not None]
    assert sum(qualities) / 2000 == pytest.approx(0.5, abs=0.01)
    assert qualities == sorted(qualities)


def test_cached_start_keeps_a_share_of_quality() -> None:
    images = EmulatedImages(FLEET, MODEL)

    scratch, reused = (images.of("x", 1, step).label for step in (0, 10))

    assert scratch.quality is not None
    assert reused.quality == pytest.approx(0.9 * scratch.quality)
    assert reused.start_step == 10


def test_a_recording_that_is_not_there_names_itself(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"recording\.json: not there"):
        EmulatedImages(FLEET, replace(MODEL, recording=tmp_path))


def test_a_faster_device_takes_less_time_for_everything() -> None:
    costs = costs_on(MODEL, DEVICES)

    assert [cost.mean_s for cost in costs.sizes[64, 64, True]] == pytest.approx([0.1, 0.1, 0.15, 0.2])
    assert costs.steps == costs.sizes[64, 64, True]
    assert (costs.prepare.mean_s, costs.finish.mean_s) == (pytest.approx(0.005), pytest.approx(0.025))


def test_decoding_has_its_share_of_the_device() -> None:
    assert decoding_share(MODEL) == pytest.approx(0.4)
    assert decoding_share(replace(MODEL, profile=replace(PROFILE, sizes=()))) == 0.0


def test_size_without_profile_is_rejected() -> None:
    spec = GenerationSpec("x", "", "light", 128, 64, 50, 3.0, Scheduler.DDIM, 1)

    with pytest.raises(InvalidArgument, match=r"spec\.width_px: must be a size that was profiled \(64x64\)"):
        check_profiled(costs_on(MODEL, DEVICES), spec)


def test_emulated_model_has_a_digest_of_its_own() -> None:
    held = emulated_held_model(MODEL, 1)

    assert held.model_digest != PROFILE.model_digest
    assert held.family == "emulated"


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 64))
def test_a_stand_in_latent_is_a_safetensors_file(width: int, height: int) -> None:
    content = stand_in_latent(8 * width, 8 * height)

    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])["latent"]
    assert header["shape"] == [1, 4, height, width]
    assert len(content) == 8 + length + header["data_offsets"][1] == 8 + length + 16 * width * height
