"""Test files of format 1, which the next version no longer reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from pentimento.policies.residual_pipelining import PipeliningBound
from pentimento.profiles.catalogue import ProfileSet, read_profiles
from pentimento.profiles.checks import parse_profiles
from pentimento.profiles.costs import read_costs
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ReuseKind,
    profiles_to_json,
)
from pentimento.profiles.kinds import (
    options,
    pipelining_bounds,
    reuse_share,
    thresholds,
)
from pentimento.profiles.rules import ThresholdRule
from tests.support.profiles import (
    LATENT_PROFILE,
)

OLD = {"model": "heavy", "model_digest": "sha256:heavy", "encoder": "clip", "encoder_digest": "sha256:clip"}
ASKED = {"quality": "clip_score", "alpha": 0.9, "rule": "lower_bound"}
COUNTED = {"picture_count": 60, "kept_count": 60, "mean_share": 0.99, "allowed": ["minimum", "lower_bound"]}
OLD_REUSE = {
    **OLD,
    **ASKED,
    "kind": "latents",
    "reference_model": "heavy",
    "reference_model_digest": "sha256:heavy",
    "step_count": 50,
    "model_step_count": 50,
    "pair_count": 80,
    "steps": [
        {"skipped_steps": 5, "sample_count": 80, "minimum": 0.7, "lower_bound": 0.6, "mean": 0.5},
        {"skipped_steps": 10, "sample_count": 80, "minimum": 0.9, "lower_bound": 0.8, "mean": 0.7},
        {"skipped_steps": 15, "sample_count": 80, "mean": 0.9},
    ],
}
OLD_STEPS = {
    **OLD,
    **ASKED,
    "scheduler": "ddim",
    "step_count": 50,
    "guidance_scale": 1.5,
    "rows": [{"first_step": 3, "taken_count": 19, "spacing": 1.5, **COUNTED}],
    "adapters": [{"digest": "sha256:neon", "scale": 1.0, "kind": "lora"}],
    "lora_patch_step": 1,
}
OLD_HANDOVER = {
    **ASKED,
    **{"light": "light", "light_digest": "sha256:l", "heavy": "heavy", "heavy_digest": "sha256:h"},
    **{"encoder": "clip", "encoder_digest": "sha256:c", "step_count": 50, "guidance_scale": 5.0, "light_share": 0.84},
    "rows": [{"reuse_share": 0.1, "taken_count": 45, **COUNTED}],
}
OLD_LORA = {
    **{"lora": "neon", "lora_digest": "sha256:neon", "model": "heavy", "model_digest": "sha256:heavy"},
    **{"latest_start_fraction": 0.02, "rule": "mean", "step_count": 50, "alike_steps": 3},
    "measured": [{"steps": 1, "picture_count": 60, "kept_count": 59, "mean_cosine": 0.9, "allowed": ["mean"]}],
}
OLD_BOUND = {"lora_digest": "sha256:neon", "model_digest": "sha256:heavy", "latest_start_fraction": 0.2}
OLD_NET = {"controlnet": "edges", "controlnet_digest": "sha256:edges", "model_digest": "sha256:heavy"}
OLD_COST = {
    **{"model": "heavy", "model_digest": "sha256:heavy", "device": "cpu", "dtype": "float32", "threads": 1},
    **{"execution": "off", "step_count": 1, "sizes": []},
    "batches": [
        {
            **{"width_px": 64, "height_px": 64, "guided": True, "batch_size": 1},
            "steps": [{"mean_s": 0.5, "variance_s2": 0.1, "sample_count": 5}],
        }
    ],
}


def old_profile(tmp_path: Path, document: dict[str, Any]) -> Profile:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"format": 1, **document}))
    (profile,) = read_profiles([path]).profiles
    assert parse_profiles(profiles_to_json(profile)) == (profile,)
    return profile


def test_format_one_reuse_has_the_same_thresholds(tmp_path: Path) -> None:
    profile = old_profile(tmp_path, OLD_REUSE)

    for rule in (None, *ThresholdRule):
        assert thresholds(profile, rule) == thresholds(LATENT_PROFILE, rule)
    assert (profile.of, profile.conditions.start) == (LATENT_PROFILE.of, ReuseKind.LATENTS)


def test_format_one_steps_have_the_same_options(tmp_path: Path) -> None:
    profile = old_profile(tmp_path, OLD_STEPS)

    (option,) = options(profile, 50)
    assert (option.first_step, option.taken_count, option.share, option.spacing) == (3, 19, 0.99, 1.5)
    assert options(profile, 50, ThresholdRule.MEAN) == ()
    assert profile.of.adapters == (MeasuredAdapter("sha256:neon"),)
    assert (profile.conditions.patch_step, profile.conditions.guidance_scale) == (1, 1.5)


def test_format_one_handover_has_the_same_share(tmp_path: Path) -> None:
    profile = old_profile(tmp_path, OLD_HANDOVER)

    assert (reuse_share(profile), reuse_share(profile, ThresholdRule.MEAN)) == (0.1, 0.0)
    assert (profile.of.reference_digest, profile.of.model_digest) == ("sha256:l", "sha256:h")
    assert profile.measured.figures == {"light_share": 0.84}


@pytest.mark.parametrize(("bound", "share"), [(OLD_LORA, 0.02), (OLD_BOUND, 0.2)])
def test_format_one_lora_has_the_same_start(tmp_path: Path, bound: dict[str, Any], share: float) -> None:
    profile = old_profile(tmp_path, {"bounds": [bound]})

    assert ProfileSet((profile,)).latest_starts("sha256:heavy") == {"sha256:neon": share}


def test_format_one_pipelining_has_the_same_bounds(tmp_path: Path) -> None:
    bounds = [{**OLD_NET, "step_count": 50, "first_step": 4}, {**OLD_NET, "step_count": 20, "first_step": 0}]

    profile = old_profile(tmp_path, {"bounds": bounds})

    assert pipelining_bounds(profile) == (PipeliningBound(20, 0), PipeliningBound(50, 4))


def test_format_one_costs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"format": 1, **OLD_COST}))

    (costs,) = read_costs([path])

    assert costs.step_seconds(64, 64, guided=True, batch_size=1) == 0.5
    assert read_profiles([path]).profiles == ()
