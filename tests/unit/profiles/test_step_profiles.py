"""Profiles of skipped steps: allowed options, and the reason for uncovered requests."""

from dataclasses import replace

import pytest

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.generation import (
    ControlNetSelection,
    Donor,
    FromImage,
    FromLatent,
    FromNoise,
    GenerationSpec,
    InitImage,
    LoraSelection,
    NoiseForm,
    ObjectReference,
    Route,
    Scheduler,
    Start,
)
from pentimento.policies.thinning import ThinningOption, WholeReason
from pentimento.profiles.catalogue import ProfileSet, StepProfiles
from pentimento.profiles.document import MeasuredAdapter, Profile, ProfileKind, ProfileRow
from pentimento.profiles.kinds import options, steps_row
from pentimento.profiles.rules import ImageSample, ThresholdRule
from tests.support.profiles import STEPS_PROFILE, changed

KEPT, LOST = ImageSample(0.3, 0.3), ImageSample(0.25, 0.3)


def row_of(first: int, taken: int, samples: list[ImageSample], **at: float) -> ProfileRow:
    return steps_row({"first_step": first, "taken_count": taken, **at}, samples, 0.95)


def profiled(*profiles: Profile, alpha: float = 0.95) -> StepProfiles:
    return StepProfiles(ProfileSet(profiles), alpha)


ROWS = (
    row_of(0, 25, [KEPT] * 60),
    row_of(0, 10, [KEPT] * 55 + [LOST] * 5),
    row_of(20, 10, [KEPT] * 60),
)
MEASURED = replace(STEPS_PROFILE, rows=ROWS)
SPEC = GenerationSpec("a circle", "", "heavy", 64, 64, 50, 1.5, Scheduler.DDIM, seed=1)
ROUTE = Route("", FromNoise(), "heavy", "sha256:heavy")
OTHER = replace(ROUTE, model_digest="sha256:other")
IMAGE = FromImage(ObjectReference("k", "sha256:x", 1), 20, NoiseForm.VARIANCE_PRESERVING, Donor("e", "sha256:x", 0.9))

NEON = MeasuredAdapter("sha256:neon", 0.8)
EDGES = MeasuredAdapter("sha256:edges", 1.0, AdapterKind.CONTROLNET)
LATENT = FromLatent(ObjectReference("k", "sha256:x", 1), 20, 50, 1.0, Donor("e", "sha256:x", 0.9))


def test_steps_row_counts_kept_images_and_their_mean_share() -> None:
    row = ROWS[1]

    assert (row.count, row.kept, row.figures, row.allowed) == (60, 55, {"share": 0.9861}, {"mean": 10})


def test_options_follow_rule_and_scale_to_more_steps_only() -> None:
    assert options(MEASURED, 50) == (ThinningOption(0, 25, 1.0), ThinningOption(20, 10, 1.0))
    assert ThinningOption(0, 10, 0.9861) in options(MEASURED, 50, ThresholdRule.MEAN)
    assert options(MEASURED, 75) == (ThinningOption(0, 38, 1.0), ThinningOption(30, 15, 1.0))
    assert options(MEASURED, 49) == ()


def test_steps_of_another_spacing_are_allowed_by_rows_of_their_own() -> None:
    rows = (
        *MEASURED.rows,
        row_of(0, 8, [KEPT] * 60, spacing=1.5),
        row_of(0, 6, [LOST] * 60, spacing=1.5),
        row_of(0, 5, [KEPT] * 60, spacing=1.5),
    )
    profile = replace(MEASURED, rows=rows)

    # Ten evenly spaced steps do not keep the quality, and eight of this spacing do; five would be luck.
    assert ThinningOption(0, 8, 1.0, 1.5) in options(profile, 50)
    assert {option.taken_count for option in options(profile, 50)} == {25, 10, 8}
    assert ThinningOption(0, 12, 1.0, 1.5) in options(profile, 75)


@pytest.mark.parametrize(
    ("spec", "start", "reason", "why"),
    [
        (SPEC, IMAGE, WholeReason.HIT_UNMEASURED, "resume there"),
        (SPEC, LATENT, WholeReason.HIT_UNMEASURED, "resume there"),
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
def test_unmeasured_request_is_not_thinned_with_reason(
    spec: GenerationSpec, start: Start, reason: WholeReason, why: str
) -> None:
    profiles = profiled(MEASURED)
    route = replace(ROUTE, start=start)
    refusal = profiles.refusal(spec, route)

    assert refusal is not None
    assert refusal.reason is reason and why in refusal.message
    assert profiles.options(spec, route) == ()


def test_measured_request_has_no_refusal() -> None:
    assert profiled(MEASURED).refusal(SPEC, ROUTE) is None


def hit(resume_step: int, similarity: float = 0.93, depth: int = 0) -> Route:
    donor = Donor("e", "sha256:x", similarity, depth)
    return replace(ROUTE, start=FromLatent(ObjectReference("k", "sha256:x", 1), resume_step, 50, 1.0, donor))


def test_hit_is_thinned_by_rows_of_its_resume_step_and_lower_similarity() -> None:
    rows = (*MEASURED.rows, row_of(25, 10, [KEPT] * 60, resume_step=25, least_similarity=0.93))
    profiles = profiled(replace(MEASURED, rows=rows))

    assert profiles.options(SPEC, hit(25)) == (ThinningOption(25, 10, 1.0),)
    assert profiles.refusal(SPEC, hit(25)) is None
    assert profiles.options(replace(SPEC, num_inference_steps=75), hit(37)) == (ThinningOption(38, 15, 1.0),)
    renoised = replace(
        ROUTE, start=replace(LATENT, resume_step=25, donor=Donor("e", "sha256:x", 0.93), renoised_steps=2)
    )
    for other in (hit(20), hit(26), hit(25, similarity=0.929), hit(25, depth=1), renoised):
        refusal = profiles.refusal(SPEC, other)
        assert profiles.options(SPEC, other) == ()
        assert refusal is not None and refusal.reason is WholeReason.HIT_UNMEASURED
    rows = (row_of(25, 10, [KEPT] * 60, resume_step=25, least_similarity=0.93, renoised_steps=20, retaken_steps=5),)
    again = replace(hit(25).start, renoised_steps=20, retaken_steps=5)
    features = changed(MEASURED, kind=ProfileKind.FEATURES, rows=rows)
    found = StepProfiles(ProfileSet((features,)), kind=ProfileKind.FEATURES)
    assert found.options(SPEC, replace(ROUTE, start=again)) == (ThinningOption(25, 10, 1.0),)
    for other in (hit(25).start, replace(again, renoised_steps=25), replace(again, retaken_steps=4)):
        assert found.options(SPEC, replace(ROUTE, start=other)) == ()
    # Rows of hits do not apply to images from noise.
    assert ThinningOption(25, 10, 1.0) not in profiles.options(SPEC, ROUTE)


BOTH = replace(
    SPEC,
    loras=(LoraSelection("neon", 0.8, "sha256:neon"),),
    controlnets=(ControlNetSelection("edges", b"", digest="sha256:edges"),),
)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (BOTH, None),
        (SPEC, None),
        (replace(BOTH, controlnets=()), WholeReason.LORAS_UNMEASURED),
        (replace(BOTH, loras=()), WholeReason.LORAS_UNMEASURED),
        (replace(BOTH, loras=(LoraSelection("neon", 0.7, "sha256:neon"),)), WholeReason.LORAS_UNMEASURED),
        (
            replace(BOTH, controlnets=(ControlNetSelection("edges", b"", 1.0, 0.0, 0.5, "sha256:edges"),)),
            WholeReason.CONTROLNETS_UNMEASURED,
        ),
        (replace(BOTH, num_inference_steps=20), WholeReason.STEPS_UNMEASURED),
    ],
)
def test_loras_and_controlnets_are_thinned_by_a_profile_of_just_these(
    spec: GenerationSpec, reason: WholeReason | None
) -> None:
    combined = changed(MEASURED, adapters=(EDGES, NEON), rows=(row_of(20, 15, [KEPT] * 60),))
    profiles = profiled(MEASURED, combined)
    refusal = profiles.refusal(spec, ROUTE)

    assert (refusal.reason if refusal else None) is reason
    assert bool(profiles.options(spec, ROUTE)) is (reason is None)
    if spec == BOTH:
        assert profiles.options(spec, ROUTE) == (ThinningOption(20, 15, 1.0),)


def test_loras_that_may_come_later_than_was_measured_are_not_thinned() -> None:
    profiles = profiled(changed(MEASURED, adapters=(NEON,), patch_step=5))
    spec = replace(SPEC, loras=BOTH.loras)
    refusal = profiles.refusal(spec, replace(ROUTE, lora_patch_step=6))

    assert refusal is not None and refusal.reason is WholeReason.LORAS_LATE
    assert profiles.refusal(spec, replace(ROUTE, lora_patch_step=5)) is None
    assert profiles.refusal(replace(spec, num_inference_steps=100), replace(ROUTE, lora_patch_step=10)) is None


def test_other_weights_and_a_weaker_promise_are_no_profile() -> None:
    profiles = profiled(MEASURED)

    missing = profiles.refusal(SPEC, OTHER)
    assert missing is not None and missing.reason is WholeReason.PROFILE_MISSING
    assert profiles.options(SPEC, OTHER) == ()
    less = profiled(MEASURED, alpha=0.97).refusal(SPEC, ROUTE)
    assert less is not None and less.reason is WholeReason.PROFILE_PROMISES_LESS
    assert profiled(MEASURED, alpha=0.97).options(SPEC, ROUTE) == ()
    assert len(profiled(MEASURED, alpha=0.9).options(SPEC, ROUTE)) == 2


def test_profile_of_scheduler_of_image_counts() -> None:
    other = changed(MEASURED, scheduler=Scheduler.EULER, rows=(row_of(30, 5, [KEPT] * 60),))

    for profiles in ((MEASURED, other), (other, MEASURED)):
        found = profiled(*profiles)
        assert found.options(replace(SPEC, scheduler=Scheduler.EULER), ROUTE) == options(other, 50)
        assert found.options(SPEC, ROUTE) == options(MEASURED, 50)
