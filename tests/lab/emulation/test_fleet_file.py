"""Test fleet files: read whole, or rejected by file, line, field and limit."""

from dataclasses import replace
from pathlib import Path

import pytest

from lab.emulation.fleet_file import (
    EmulatedFleet,
    EmulatedReuse,
    ImageLabel,
    label_of,
    labelled,
    largest_batch,
    measured_batches,
    read_fleet,
)
from lab.emulation.png_text import flat_png, with_text
from lab.emulation.speed import SpeedChanges
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.policies.cache_selection import Threshold
from pentimento.profiles.costs import BatchProfile, Cost, ModelProfile, costs_to_json
from tests.support.refusals import wrong_refusals

FLEET = """\
seed = 7
batching = "requests"
default_model = "heavy"

[[models]]
name = "light"
steps = 2
guidance_scale = 1.0
latency_s = { 1 = 0.1, 4 = 0.3 }
variation = 0.5
load_s = 2.0

[[models]]
name = "heavy"
profile = "heavy.json"
quality = 0.6

[[devices]]
name = "small"
count = 2
models = ["light"]
speed = 0.5
speed_variation = 0.1

[[devices]]
name = "large"
count = 3
models = ["heavy", "light"]
memory_bytes = 250
max_batch = 4

[discriminator]
score_s = 0.01
variation = 0.1
count = 2

[deferral]
thresholds = [0.0, 0.5, 1.0]
shares = [0.0, 0.2, 1.0]
"""


def heavy() -> ModelProfile:
    batches = tuple(BatchProfile(64, 64, True, size, (Cost(0.1 * size, 0.0, 3),), 100 * size) for size in (1, 2, 4))
    return ModelProfile("heavy", "sha256:0", "gpu", "float16", 1, "off", 50, (), batches)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "heavy.json").write_text(costs_to_json(heavy()))
    (tmp_path / "fleet.toml").write_text(FLEET)
    return tmp_path / "fleet.toml"


@pytest.fixture
def fleet(path: Path) -> EmulatedFleet:
    return read_fleet(path)


def test_a_fleet_is_read(fleet: EmulatedFleet) -> None:
    assert (fleet.seed, fleet.step_batching, fleet.default_model, fleet.cache) == (7, False, "heavy", False)
    assert fleet.devices_named("large").workers() == ("large-0", "large-1", "large-2")
    assert fleet.discriminator is not None
    assert (fleet.discriminator.count, fleet.discriminator.score) == (2, Cost(0.01, pytest.approx(1e-6), 2))
    assert fleet.deferral == ((0.0, 0.0), (0.5, 0.2), (1.0, 1.0))


def test_fleet_file_gives_speeds_and_their_changes(fleet: EmulatedFleet) -> None:
    small, large = fleet.devices_named("small"), fleet.devices_named("large")

    assert (small.speed, small.speed_changes) == (0.5, SpeedChanges(0.1, period_s=5.0))
    assert (large.speed, large.speed_changes) == (1.0, SpeedChanges())


def test_a_profile_that_was_measured_is_read(fleet: EmulatedFleet) -> None:
    model = fleet.model("heavy")

    assert model.profile == heavy()
    assert (model.width_px, model.steps, model.guided) == (64, 50, True)


def test_latencies_become_a_profile_with_their_variation(fleet: EmulatedFleet) -> None:
    model = fleet.model("light")
    first = measured_batches(model)[0].step

    assert [batch.batch_size for batch in measured_batches(model)] == [1, 4]
    assert first.mean_s * model.steps == pytest.approx(0.1)
    assert (first.variance_s2 * model.steps) ** 0.5 == pytest.approx(0.5 * 0.1)
    assert not model.guided


def test_batches_are_bounded_by_memory_and_measured_sizes(fleet: EmulatedFleet) -> None:
    large, small = fleet.devices_named("large"), fleet.devices_named("small")

    assert largest_batch(fleet.model("heavy"), large) == 2
    assert largest_batch(fleet.model("light"), large) == 4
    assert largest_batch(fleet.model("light"), small) == 4
    assert largest_batch(fleet.model("heavy"), replace(large, memory_bytes=99)) == 0


WRONG = [
    ("seed = 7", "seed = -7", r"fleet\.toml:1: seed: must be at least 0, got -7"),
    ('"requests"', '"some"', r"fleet\.toml:2: batching: must be one of steps, requests, got 'some'"),
    ('default_model = "heavy"', 'default_model = "x"', r":3: default_model: must be one of light, heavy, got 'x'"),
    ("steps = 2", "steps = 0", r":7: models\[0\]\.steps: must be 1 to 1000, got 0"),
    ("1 = 0.1", "0 = 0.1", r":9: models\[0\]\.latency_s\.0: must be a batch size of 1 to 64"),
    ("1 = 0.1", "1 = 0", r":9: models\[0\]\.latency_s\.1: must be 1e-06 to 1e\+06, got 0"),
    ("1 = 0.1", "1 = 1e300", r":9: models\[0\]\.latency_s\.1: must be 1e-06 to 1e\+06, got 1e\+300"),
    ("variation = 0.5", "spread = 0.5", r":10: models\[0\]\.spread: is no field that is known here"),
    ('profile = "heavy.json"', 'profile = "x.json"', r":15: models\[1\]\.profile: .*x\.json cannot be read"),
    ('profile = "heavy.json"', "", r":13: models\[1\]\.profile: must be given, or else latency_s"),
    ('name = "large"', 'name = "small"', r"devices: must have names of their own, got small, small"),
    ("speed = 0.5", "speed = 0", r":22: devices\[0\]\.speed: must be 0\.001 to 1000, got 0"),
    ("speed_variation = 0.1", "speed_variation = 11", r":23: devices\[0\]\.speed_variation: must be 0 to 10, got"),
    ("speed_variation = 0.1", "speed_period_s = 0", r":23: devices\[0\]\.speed_period_s: must be at least 0\.01"),
    ("count = 3", "count = 5000", r":27: devices\[1\]\.count: must be 1 to 1024, got 5000"),
    ('["heavy", "light"]', '["other"]', r":28: devices\[1\]\.models: must be some of light, heavy, got"),
    ('["heavy", "light"]', "[]", r":28: devices\[1\]\.models: must be some of"),
    ("memory_bytes = 250", "memory_bytes = 99", r":29: devices\[1\]\.memory_bytes: must be enough for heavy"),
    ('name = "small"', 'name = "../small"', r":19: devices\[0\]\.name: must be 1 to 16 letters"),
    (
        "shares = [0.0, 0.2, 1.0]",
        "shares = [0.0, 1.0]",
        r":39: deferral\.shares: must be two or more, one for each",
    ),
    ("shares = [0.0, 0.2, 1.0]", "shares = [0.0, 0.9, 0.2]", r":39: deferral\.shares: must ascend within 0 and 1"),
]


def test_wrong_field_names_file_line_and_limit(path: Path) -> None:
    def read(old: str, new: str) -> None:
        assert old in FLEET
        path.write_text(FLEET.replace(old, new, 1))
        read_fleet(path)

    assert wrong_refusals(InvalidArgument, read, WRONG) == []


def test_a_profile_of_another_guidance_is_refused(path: Path) -> None:
    path.write_text(FLEET.replace("quality = 0.6", "guidance_scale = 1.0"))

    with pytest.raises(InvalidArgument, match=r":16: models\[1\]\.guidance_scale: must be one that"):
        read_fleet(path)


def test_fleet_file_gives_tables_of_reuse(path: Path) -> None:
    path.write_text(FLEET + "[reuse.images]\nsimilarity = [0.5, 0.9]\nsaved_share = [0.1, 0.6]\n")

    assert read_fleet(path).reuse == EmulatedReuse((), (Threshold(0.5, 0.1), Threshold(0.9, 0.6)))


WRONG_REUSE = [
    ("[reuse]", r":40: reuse\.images: must be given, or latents"),
    ("[reuse.latents]\nsimilarity = [0.5]\nsaved_share = []", r"reuse\.latents\.saved_share: must be one for each"),
    ("[reuse.images]\nsimilarity = [0.9, 0.5]\nsaved_share = [0.1, 0.2]", r"images\.similarity: must ascend"),
]


def test_fleet_file_with_wrong_reuse_is_refused(path: Path) -> None:
    def read(table: str) -> None:
        path.write_text(f"{FLEET}{table}\n")
        read_fleet(path)

    assert wrong_refusals(InvalidArgument, read, WRONG_REUSE) == []


@pytest.mark.parametrize("section", ["models", "devices"])
def test_a_fleet_without_models_or_devices_is_none(section: str, path: Path) -> None:
    path.write_text("seed = 1\n" if section == "models" else FLEET[: FLEET.index("[[devices]]")])

    with pytest.raises(InvalidArgument, match=f"{section}: must have at least one entry"):
        read_fleet(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"fleet\.toml: not there"):
        read_fleet(tmp_path / "fleet.toml")


def test_unknown_device_lists_the_known_ones(fleet: EmulatedFleet) -> None:
    with pytest.raises(InvalidArgument, match="must be one of small, large, got 'medium'"):
        fleet.devices_named("medium")


def test_the_fleets_of_the_repository_can_be_read() -> None:
    files = list(Path("scenarios/fleets").glob("*.toml"))

    assert files
    assert all(sum(devices.count for devices in read_fleet(file).devices) >= 1 for file in files)


def test_labelled_image_keeps_its_label() -> None:
    label = ImageLabel("light", 0.25, 0.6, 10)

    assert label_of(labelled(flat_png(8, 8, (0, 0, 0)), label)) == label


def test_a_broken_label_is_none() -> None:
    for text in ("", "{", "[]", '{"model": "m"}', '{"model": "m", "confidence": 2.0}', '{"x": 1}'):
        assert label_of(with_text(flat_png(8, 8, (0, 0, 0)), "pentimento-emulated", text)) is None, text
    assert label_of(b"") is None
