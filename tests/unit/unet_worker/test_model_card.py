"""Describe the worker's model: checkpoint, then registry, then settings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pentimento.diffusion.checkpoint import BadCheckpoint
from pentimento.diffusion.families import LoadedModelInfo
from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.fleet import ModelCost
from pentimento.domain.generation import NoiseForm, Scheduler
from pentimento.profiles.costs import BatchProfile, Cost, ModelProfile, SizeProfile, costs_to_json
from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.unet_worker.models.model_card import checkpoints, held_model, model_costs, named_models
from services.unet_worker.process import estimated_cost
from services.unet_worker.settings import SkipMissing, UnetWorkerSettings
from tests.support.logged import said_by
from tests.unit.unet_worker.orders import HELD

DIGEST = f"sha256:{'1' * 64}"
INFO = LoadedModelInfo(
    family="stable_diffusion",
    model_digest="sha256:model",
    vae_digest="sha256:vae",
    scheduler_digest="sha256:scheduler",
    prediction_type="epsilon",
    noise_form=NoiseForm.VARIANCE_PRESERVING,
    default_width_px=512,
    default_height_px=256,
    size_multiple_px=8,
    schedulers=(Scheduler.EULER, Scheduler.DDIM),
    train_step_count=500,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "sd").mkdir()
    return tmp_path / "sd"


def settings(directory: Path, **given: Any) -> UnetWorkerSettings:
    return UnetWorkerSettings(RpcServerSettings(), RpcChannelSettings(), directory, **given)


def write_registry(directory: Path, content: object) -> None:
    (directory.parent / "registry.json").write_text(json.dumps(content))


def test_a_checkpoint_alone_gets_the_usual_defaults(directory: Path) -> None:
    held = held_model(INFO, settings(directory), generation=9)

    assert (held.model, held.worker_generation) == ("sd", 9)
    assert (held.default_steps, held.default_guidance_scale, held.licence) == (50, 7.5, "")
    assert (held.max_size_px, held.max_steps) == (1024, 500)
    assert held.schedulers == ("euler", "ddim")


def test_registry_overrides_checkpoint(directory: Path) -> None:
    entry = {"path": "sd", "default_steps": 12, "default_guidance_scale": 3.0, "licence": "Apache-2.0"}
    write_registry(directory, {"models": [{"path": "other"}, entry]})

    held = held_model(INFO, settings(directory), generation=9)

    assert (held.default_steps, held.default_guidance_scale, held.licence) == (12, 3.0, "Apache-2.0")


def test_turbo_checkpoint_is_described_with_one_step(tmp_path: Path) -> None:
    directory = tmp_path / "sdxl-turbo"
    (directory / "scheduler").mkdir(parents=True)
    (directory / "model_index.json").write_text('{"_class_name": "StableDiffusionXLPipeline"}')
    (directory / "scheduler" / "scheduler_config.json").write_text('{"timestep_spacing": "trailing"}')

    own = held_model(INFO, settings(directory), generation=9)

    assert (own.default_steps, own.default_guidance_scale) == (1, 0.0)


def test_settings_know_best(directory: Path) -> None:
    held = held_model(INFO, settings(directory, model_name="mine", max_size_px=640), generation=9)

    assert (held.model, held.max_size_px) == ("mine", 640)


@pytest.mark.parametrize("wanted", [0, 4096])
def test_image_size_is_bounded_by_positions_of_model(directory: Path, wanted: int) -> None:
    held = held_model(replace(INFO, longest_side_px=768), settings(directory, max_size_px=wanted), generation=9)

    assert held.max_size_px == 768


@pytest.mark.parametrize("content", [[], {"models": 3}, {"models": ["sd"]}])
def test_a_registry_that_is_none_is_named(directory: Path, content: object) -> None:
    write_registry(directory, content)

    with pytest.raises(BadCheckpoint, match=r"registry\.json"):
        held_model(INFO, settings(directory), generation=9)


def test_costs_of_models_equal_measurements(directory: Path, tmp_path: Path) -> None:
    write_registry(directory, {"models": [{"path": "sd", "default_steps": 10, "default_guidance_scale": 3.0}]})
    (tmp_path / "light").mkdir()
    step = Cost(0.5, 0.0, 1)
    batches = tuple(BatchProfile(512, 256, guided, size, (step,)) for guided in (False, True) for size in (1, 2, 4))
    sizes = (SizeProfile(512, 256, Cost(0.1, 0.0, 1), step, step),)
    own = ModelProfile("sd", "sha256:model", "cpu", "float32", 1, "off", 10, sizes, batches, idle_memory_bytes=7)
    files = tuple(tmp_path / f"{name}.json" for name in ("sd", "light", "stranger"))
    for file in files:
        file.write_text(costs_to_json(replace(own, model=file.stem)))
    given = settings(directory, other_models=(tmp_path / "light",), profiles=files, max_batch=2)

    costs = model_costs(checkpoints(given))

    # Ten steps by the registry, 50 where nothing is known.
    once = {"fixed_s": 0.1, "finish_s": 1.0}
    light = ModelCost("light", ((1, 25.1), (2, 25.2)), 7, step_count=50, **once)
    assert costs == (light, ModelCost("sd", ((1, 5.1), (2, 5.2)), 7, step_count=10, **once))


def test_a_profile_that_is_none_is_named(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{}")

    with pytest.raises(InvalidArgument, match=r"profiles: .*p\.json"):
        model_costs(checkpoints(settings(directory, profiles=(tmp_path / "p.json",))))


def test_settings_of_first_model_do_not_apply_to_others(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "light").mkdir()
    given = settings(directory, model_name="first", other_models=(tmp_path / "light",))

    names = [held_model(INFO, one, generation=9).model for one in checkpoints(given).values()]

    assert names == ["first", "light"]


def test_two_models_of_one_name_are_refused(directory: Path) -> None:
    with pytest.raises(InvalidArgument, match="other_models: must have names of their own, got 'sd' twice"):
        checkpoints(settings(directory, other_models=(directory,)))


def test_checkpoints_missing_model_is_skipped_where_it_may_be(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = (directory, directory.parent / "gone")

    named = checkpoints(settings(directory, other_models=others, skip_missing=SkipMissing.OTHERS))

    assert list(named) == ["sd"]
    assert [record.getMessage() for record in said_by("services.unet_worker.models.model_card", caplog)] == [
        f"skipped, no such directory or file: {directory.parent}/gone"
    ]


def test_checkpoints_model_named_twice_is_found_once(directory: Path) -> None:
    (directory.parent / "light").mkdir()
    others = (directory.parent / "light", Path("light"), Path("sd"))

    named = checkpoints(settings(directory, other_models=others, skip_missing=SkipMissing.OTHERS))

    assert {name: one.model for name, one in named.items()} == {"sd": directory, "light": directory.parent / "light"}


@pytest.mark.parametrize("skip_missing", [SkipMissing.OFF, SkipMissing.OTHERS])
def test_settings_missing_own_model_is_rejected(tmp_path: Path, skip_missing: SkipMissing) -> None:
    with pytest.raises(ValueError, match="--model: no such file or directory"):
        settings(tmp_path / "gone", skip_missing=skip_missing)


def test_a_model_that_is_not_the_registered_one_is_refused(directory: Path) -> None:
    write_registry(directory, {"models": [{"path": "sd", "digest": "sha256:other"}]})

    with pytest.raises(FailedPrecondition, match="its digest is sha256:model, expected sha256:other") as refused:
        held_model(INFO, settings(directory), generation=9)
    assert refused.value.reason == "MODEL_DIGEST_MISMATCH"


def test_a_model_that_is_not_the_one_of_the_settings_is_refused(directory: Path) -> None:
    write_registry(directory, {"models": [{"path": "sd", "digest": "sha256:model"}]})

    with pytest.raises(FailedPrecondition, match="expected sha256:mine"):
        held_model(INFO, settings(directory, expected_digest="sha256:mine"), generation=9)


@pytest.mark.parametrize(
    ("registered", "given"),
    [
        ("sha256:model", {}),
        ("sha256:other", {"expected_digest": "any"}),
        ("sha256:other", {"expected_digest": "sha256:model"}),
    ],
)
def test_a_model_that_is_expected_or_allowed_is_held(directory: Path, registered: str, given: dict[str, Any]) -> None:
    write_registry(directory, {"models": [{"path": "sd", "digest": registered}]})

    assert held_model(INFO, settings(directory, **given), generation=9).model_digest == "sha256:model"


@pytest.mark.parametrize(
    ("given", "expected"), [("sha256:model", ["sha256:model", ""]), ("any", ["any", "any"])], ids=["a digest", "any"]
)
def test_expected_digest_is_of_the_first_model_unless_it_is_any(
    directory: Path, given: str, expected: list[str]
) -> None:
    other = directory.parent / "other"
    other.mkdir()

    found = checkpoints(settings(directory, other_models=(other,), expected_digest=given))

    assert [one.expected_digest for one in found.values()] == expected


def test_another_model_has_the_digest_that_is_behind_its_directory(directory: Path) -> None:
    other, digest = directory.parent / "other", f"sha256:{'1' * 64}"
    other.mkdir()

    named = checkpoints(settings(directory, other_models=(Path(f"{other}@{digest}"),)))

    assert (named["other"].model, named["other"].expected_digest) == (other, digest)


@pytest.mark.parametrize(("given", "wrong"), [("other@sha256:12", "64 hexadecimal digits"), ("none", "no directory")])
def test_another_model_that_cannot_be_held_is_refused(directory: Path, given: str, wrong: str) -> None:
    (directory.parent / "other").mkdir()

    with pytest.raises(InvalidArgument, match=f"other_models: .*{wrong}"):
        checkpoints(settings(directory, other_models=(directory.parent / given,)))


@pytest.mark.parametrize("given", [f"=s3://b/m@{DIGEST}", "m=s3://b/m", "m=s3://b/m@sha256:12", f"m=s3:b@{DIGEST}"])
def test_model_of_s3_without_name_address_or_digest_is_refused(directory: Path, given: str) -> None:
    for field, named in (("model", {"model": Path(given)}), ("other_models", {"other_models": (Path(given),)})):
        with pytest.raises(InvalidArgument, match=rf"^{field}: must (be NAME=s3://bucket|have sha256:)"):
            named_models(replace(settings(directory), **named))


def test_named_models_have_each_model_of_s3_once(directory: Path) -> None:
    """An entry may also say where the worker's own model is, or one that is named by its place."""
    own, other, third = (Path(f"{name}=s3://b/{name}@{DIGEST}") for name in (directory.name, "light", "third"))

    named = named_models(settings(directory, other_models=(own, directory.parent / "light", other, third)))

    assert [one.path for one in named] == [directory.parent / "light", Path("third")]


def test_checkpoints_finds_files_by_names_without_suffix(directory: Path) -> None:
    for name in ("own", "light"):
        (directory.parent / f"{name}.safetensors").touch()

    named = checkpoints(settings(directory.parent / "own", other_models=(Path("light"),)))

    assert {name: one.model.name for name, one in named.items()} == {
        "own": "own.safetensors",
        "light": "light.safetensors",
    }


# Eight steps of 0.5 s, reported before as a run of `reported_s`; None: not reported yet.
@pytest.mark.parametrize(
    ("step_s", "reported_s", "run_s"),
    [(0.5, None, 4.0), (0.5, 4.7, 4.7), (0.5, 5.0, 4.0), (0.5, 3.0, 4.0), (0.0, 3.0, 3.0)],
)
def test_estimated_cost_changes_with_a_fifth(step_s: float, reported_s: float | None, run_s: float) -> None:
    reported = None if reported_s is None else ModelCost("tiny", ((1, reported_s),), step_count=8, estimated=True)

    assert estimated_cost(HELD, step_s, reported) == ModelCost("tiny", ((1, run_s),), step_count=8, estimated=True)


def test_estimated_cost_is_none_before_a_step_was_measured() -> None:
    assert estimated_cost(HELD, 0.0, None) is None
