"""The file of a thinning profile: written and read back, refused with what is wrong, and what it allows."""

from dataclasses import replace
from pathlib import Path

import pytest

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.errors import InvalidArgument
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
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning import ThinningOption, WholeReason
from pentimento.policies.thinning_adapters import MeasuredAdapter
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
ROUTE = Route("", FromNoise(), "heavy", "sha256:heavy")
OTHER = replace(ROUTE, model_digest="sha256:other")
IMAGE = FromImage(ObjectReference("k", "sha256:x", 1), 20, NoiseForm.VARIANCE_PRESERVING, Donor("e", "sha256:x", 0.9))

NEON = MeasuredAdapter("sha256:neon", 0.8)
EDGES = MeasuredAdapter("sha256:edges", 1.0, AdapterKind.CONTROLNET)
LATENT = FromLatent(ObjectReference("k", "sha256:x", 1), 20, 50, 1.0, Donor("e", "sha256:x", 0.9))


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
        (thinning_to_json(replace(MEASURED, rows=(ThinnedRow(5, 5, 60, 60, 1.0, (), 6),))), r"rows\[0\]"),
        (thinning_to_json(replace(MEASURED, adapters=(NEON, EDGES))), "adapters"),
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


def test_steps_of_another_spacing_are_allowed_by_rows_of_their_own() -> None:
    rows = (
        *MEASURED.rows,
        thinned_row(0, 8, [KEPT] * 60, 0.95, spacing=1.5),
        thinned_row(0, 6, [LOST] * 60, 0.95, spacing=1.5),
        thinned_row(0, 5, [KEPT] * 60, 0.95, spacing=1.5),
    )
    profile = thinning_from_json(thinning_to_json(replace(MEASURED, rows=rows)))

    # Ten evenly spaced steps do not keep the quality, and eight of this spacing do; five of it would be luck.
    assert ThinningOption(0, 8, 1.0, 1.5) in profile.options(50)
    assert {option.taken_count for option in profile.options(50)} == {25, 10, 8}
    assert ThinningOption(0, 12, 1.0, 1.5) in profile.options(75)


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
def test_of_what_was_not_measured_nothing_is_thinned_and_it_says_why(
    spec: GenerationSpec, start: Start, reason: WholeReason, why: str
) -> None:
    profiles = ThinningProfiles((MEASURED,))
    route = replace(ROUTE, start=start)
    refusal = profiles.refusal(spec, route)

    assert refusal is not None
    assert refusal.reason is reason and why in refusal.message
    assert profiles.options(spec, route) == ()


def test_what_was_measured_is_refused_for_no_reason() -> None:
    assert ThinningProfiles((MEASURED,)).refusal(SPEC, ROUTE) is None


def hit(resume_step: int, similarity: float = 0.93, depth: int = 0) -> Route:
    donor = Donor("e", "sha256:x", similarity, depth)
    return replace(ROUTE, start=FromLatent(ObjectReference("k", "sha256:x", 1), resume_step, 50, 1.0, donor))


def test_a_hit_is_thinned_by_rows_of_hits_that_are_no_more_similar_and_resume_where_it_does() -> None:
    rows = (*MEASURED.rows, thinned_row(25, 10, [KEPT] * 60, 0.95, resume_step=25, least_similarity=0.93))
    profiles = ThinningProfiles((replace(MEASURED, rows=rows),))

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
    # What was measured of hits is no licence for pictures from noise.
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
    combined = replace(MEASURED, adapters=(EDGES, NEON), rows=(thinned_row(20, 15, [KEPT] * 60, 0.95),))
    profiles = ThinningProfiles((MEASURED, combined))
    refusal = profiles.refusal(spec, ROUTE)

    assert (refusal.reason if refusal else None) is reason
    assert bool(profiles.options(spec, ROUTE)) is (reason is None)
    if spec == BOTH:
        assert profiles.options(spec, ROUTE) == (ThinningOption(20, 15, 1.0),)


def test_loras_that_may_come_later_than_was_measured_are_not_thinned() -> None:
    profiles = ThinningProfiles((replace(MEASURED, adapters=(NEON,), lora_patch_step=5),))
    spec = replace(SPEC, loras=BOTH.loras)
    refusal = profiles.refusal(spec, replace(ROUTE, lora_patch_step=6))

    assert refusal is not None and refusal.reason is WholeReason.LORAS_LATE
    assert profiles.refusal(spec, replace(ROUTE, lora_patch_step=5)) is None
    assert profiles.refusal(replace(spec, num_inference_steps=100), replace(ROUTE, lora_patch_step=10)) is None


def test_files_of_one_model_differ_by_what_they_were_painted_with(tmp_path: Path) -> None:
    for name, adapters in (("a", ()), ("b", (NEON,)), ("c", (EDGES, NEON))):
        (tmp_path / f"{name}.json").write_text(thinning_to_json(replace(MEASURED, adapters=adapters)))

    assert [profile.adapters for profile in read_thinning_profiles([tmp_path])] == [(), (NEON,), (EDGES, NEON)]


def test_other_weights_and_a_weaker_promise_are_no_profile() -> None:
    profiles = ThinningProfiles((MEASURED,))

    missing = profiles.refusal(SPEC, OTHER)
    assert missing is not None and missing.reason is WholeReason.PROFILE_MISSING
    assert profiles.options(SPEC, OTHER) == ()
    less = ThinningProfiles((MEASURED,), 0.97).refusal(SPEC, ROUTE)
    assert less is not None and less.reason is WholeReason.PROFILE_PROMISES_LESS
    assert ThinningProfiles((MEASURED,), 0.97).options(SPEC, ROUTE) == ()
    assert len(ThinningProfiles((MEASURED,), 0.9).options(SPEC, ROUTE)) == 2


def test_a_file_that_is_no_profile_is_not_read_as_one() -> None:
    with pytest.raises(InvalidArgument):
        thinning_from_json("[" * 100_000)


def test_of_a_model_s_profiles_that_of_the_picture_s_own_scheduler_counts() -> None:
    other = replace(MEASURED, scheduler=Scheduler.EULER, rows=(thinned_row(30, 5, [KEPT] * 60, 0.95),))

    for profiles in ((MEASURED, other), (other, MEASURED)):
        found = ThinningProfiles(profiles)
        assert found.options(replace(SPEC, scheduler=Scheduler.EULER), ROUTE) == other.options(50)
        assert found.options(SPEC, ROUTE) == MEASURED.options(50)
