"""The file of a thinning profile: written and read back, refused with what is wrong, and what it allows."""

from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import (
    ControlNetSelection,
    Donor,
    FromImage,
    FromNoise,
    GenerationSpec,
    InitImage,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    Scheduler,
    Start,
)
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning import ThinningOption, WholeReason
from pentimento.policies.thinning_profiles import (
    ThinnedRow,
    ThinningProfile,
    ThinningProfiles,
    read_thinning_profiles,
    thinned_row,
    thinning_from_json,
    thinning_to_json,
)
from pentimento.policies.thinning_profiling import ThinnedSample

KEPT, LOST = ThinnedSample(0.3, 0.3), ThinnedSample(0.25, 0.3)
MEASURED = ThinningProfile(
    "heavy",
    "sha256:heavy",
    Scheduler.DDIM,
    50,
    1.5,
    "clip",
    "sha256:clip",
    "clip_score",
    0.95,
    ThresholdRule.LOWER_BOUND,
    (
        thinned_row(0, 25, [KEPT] * 60, 0.95),
        thinned_row(0, 10, [KEPT] * 55 + [LOST] * 5, 0.95),
        thinned_row(20, 10, [KEPT] * 60, 0.95),
    ),
)
SPEC = GenerationSpec("a circle", "", "heavy", 64, 64, 50, 1.5, Scheduler.DDIM, seed=1)
IMAGE = FromImage(ObjectReference("k", "sha256:x", 1), 20, NoiseForm.VARIANCE_PRESERVING, Donor("e", "sha256:x", 0.9))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "heavy.json").write_text(thinning_to_json(MEASURED))

    assert read_thinning_profiles([tmp_path]) == (MEASURED,)
    row = MEASURED.rows[1]
    assert (row.picture_count, row.kept_count, row.mean_share) == (60, 55, 0.9861)
    assert row.allowed == (ThresholdRule.MEAN,)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "must be JSON"),
        ("[]", "format"),
        (thinning_to_json(MEASURED).replace('"format": 1', '"format": 2'), "format"),
        (thinning_to_json(replace(MEASURED, model_digest="")), "model_digest"),
        (thinning_to_json(replace(MEASURED, alpha=1.5)), "alpha"),
        (thinning_to_json(replace(MEASURED, rows=(ThinnedRow(30, 25, 60, 60, 1.0),))), r"rows\[0\]"),
        (thinning_to_json(replace(MEASURED, rows=(ThinnedRow(-1, 25, 60, 60, 1.0),))), r"rows\[0\]"),
    ],
)
def test_what_is_wrong_is_named(text: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "heavy.json"
    path.write_text(text)

    with pytest.raises(InvalidArgument, match=rf"heavy\.json.*{wrong}"):
        read_thinning_profiles([path])


def test_two_files_of_one_model_and_scheduler_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(thinning_to_json(MEASURED))

    with pytest.raises(InvalidArgument, match="as another file does"):
        read_thinning_profiles([tmp_path])


def test_options_are_those_of_the_rule_and_scale_to_more_steps_alone() -> None:
    assert MEASURED.options(50) == (ThinningOption(0, 25, 1.0), ThinningOption(20, 10, 1.0))
    assert ThinningOption(0, 10, 0.9861) in MEASURED.options(50, ThresholdRule.MEAN)
    assert MEASURED.options(75) == (ThinningOption(0, 38, 1.0), ThinningOption(30, 15, 1.0))
    assert MEASURED.options(49) == ()


@pytest.mark.parametrize(
    ("spec", "start", "reason", "why"),
    [
        (SPEC, IMAGE, WholeReason.HIT_UNMEASURED, "start from the cache"),
        (replace(SPEC, num_inference_steps=49), FromNoise(), WholeReason.STEPS_UNMEASURED, "50 steps"),
        (replace(SPEC, guidance_scale=3.0), FromNoise(), WholeReason.GUIDANCE_UNMEASURED, "guidance"),
        (replace(SPEC, scheduler=Scheduler.EULER), FromNoise(), WholeReason.SCHEDULER_UNMEASURED, "ddim"),
        (replace(SPEC, eta=0.5), FromNoise(), WholeReason.SCHEDULER_UNMEASURED, "ddim"),
        (replace(SPEC, loras=(LoraSelection("neon"),)), FromNoise(), WholeReason.LORAS_UNMEASURED, "LoRAs"),
        (
            replace(SPEC, controlnets=(ControlNetSelection("edges", b""),)),
            FromNoise(),
            WholeReason.CONTROLNETS_UNMEASURED,
            "ControlNets",
        ),
        (replace(SPEC, init_image=InitImage(b"", 0.5)), FromNoise(), WholeReason.IMAGE_UNMEASURED, "image"),
    ],
)
def test_of_what_was_not_measured_nothing_is_thinned_and_it_says_why(
    spec: GenerationSpec, start: Start, reason: WholeReason, why: str
) -> None:
    profiles = ThinningProfiles((MEASURED,))
    refusal = profiles.refusal(spec, "sha256:heavy", start)

    assert refusal is not None
    assert refusal.reason is reason and why in refusal.message
    if start == FromNoise():
        assert profiles.options(spec, "sha256:heavy") == ()


def test_what_was_measured_is_refused_for_no_reason() -> None:
    assert ThinningProfiles((MEASURED,)).refusal(SPEC, "sha256:heavy", FromNoise()) is None


def test_other_weights_and_a_weaker_promise_are_no_profile() -> None:
    profiles = ThinningProfiles((MEASURED,))

    missing = profiles.refusal(SPEC, "sha256:other", FromNoise())
    assert missing is not None and missing.reason is WholeReason.PROFILE_MISSING
    assert profiles.options(SPEC, "sha256:other") == ()
    less = ThinningProfiles((MEASURED,), 0.97).refusal(SPEC, "sha256:heavy", FromNoise())
    assert less is not None and less.reason is WholeReason.PROFILE_PROMISES_LESS
    assert ThinningProfiles((MEASURED,), 0.97).options(SPEC, "sha256:heavy") == ()
    assert len(ThinningProfiles((MEASURED,), 0.9).options(SPEC, "sha256:heavy")) == 2


def test_a_file_that_is_no_profile_is_not_read_as_one() -> None:
    with pytest.raises(InvalidArgument):
        thinning_from_json("[" * 100_000)
