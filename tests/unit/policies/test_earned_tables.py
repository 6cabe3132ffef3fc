"""Tables of earned reuse: first cells, cells in force, and the next cell to test."""

from dataclasses import replace

import pytest

from pentimento.domain.online_quality import ThresholdPosition
from pentimento.policies.cache_selection import SelectionRules, Threshold, keeps_image
from pentimento.policies.earned_reuse import CLOSED, TURN_SAMPLES, TrialRow
from pentimento.policies.published_reuse import CLIP_VIT_L_14, prior_of
from pentimento.policies.reuse_rules import (
    CLOSED_ROWS,
    EARNED,
    UNEARNED,
    ModelReuse,
    ReuseRules,
    followed_rows,
    in_force,
    opened,
)
from pentimento.profiles.catalogue import ProfileSet
from pentimento.profiles.document import ReuseKind
from pentimento.profiles.kinds import thresholds
from tests.support.profiles import LATENT_PROFILE, changed, reuse_step

NOTHING = SelectionRules(latents=(), images=())
LATENTS = changed(LATENT_PROFILE, rows=(reuse_step(5, 80, 0.8, 0.7, 0.6), reuse_step(10, 80, 0.95, 0.9, 0.8)))
RULES = ReuseRules(NOTHING, ProfileSet((LATENTS,)), earns=True)
OTHER = ("another-digest", "sha256:clip")


def moved(reuse: ModelReuse, digests: tuple[str, str], **by_steps: float) -> ModelReuse:
    """Return tables in force with rows of `stepsK` moved to a similarity."""
    rows = {f"steps{round(row.threshold.saved_share * 50)}": row.watched for row in followed_rows(reuse, *digests)}
    return in_force(reuse, *digests, {rows[name]: ThresholdPosition(value) for name, value in by_steps.items()})


def test_model_without_profile_begins_closed_and_names_rejected_prior() -> None:
    table = RULES.of(*OTHER).latents

    assert (table.thresholds, table.alpha, table.earned) == (CLOSED_ROWS[ReuseKind.LATENTS], 0.9, True)
    assert table.source.startswith(UNEARNED)
    assert "prior of NIRVANA for openai/clip-vit-large-patch14 does not hold" in table.source
    assert RULES.reuses_anything


def test_model_without_profile_begins_with_prior_of_its_encoder() -> None:
    table = RULES.of("another-digest", CLIP_VIT_L_14.digest).latents

    assert {row.min_similarity for row in table.thresholds} == {0.95}
    assert [round(row.saved_share * 50) for row in table.thresholds] == [5, 10, 15, 20, 25]
    assert (table.source, table.earned) == ("prior of NIRVANA for openai/clip-vit-large-patch14", True)


def test_prior_serves_exact_files_only() -> None:
    other = replace(CLIP_VIT_L_14, files={**CLIP_VIT_L_14.files, "model.safetensors": "0" * 64})
    for kind in ReuseKind:
        assert prior_of(kind, CLIP_VIT_L_14.digest) is not None
        assert prior_of(kind, other.digest) is None
        assert prior_of(kind, None) is None


@pytest.mark.parametrize(
    "rules",
    [
        replace(RULES, earns=False),
        replace(RULES, bias=1),
        replace(RULES, base=SelectionRules()),
    ],
    ids=["switched off", "a biased cache", "the operator's table"],
)
def test_nothing_is_earned_where_a_setting_decides(rules: ReuseRules) -> None:
    assert not rules.of(*OTHER).latents.earned
    assert opened(rules.of(*OTHER), {}).trials == ()


def test_profile_is_a_head_start() -> None:
    digests = ("sha256:heavy", "sha256:clip")
    reuse = RULES.of(*digests)
    wider = moved(reuse, digests, steps10=0.88)

    assert (reuse.latents.thresholds, reuse.latents.earned) == (thresholds(LATENTS), True)
    assert [row.min_similarity for row in wider.latents.thresholds] == [0.7, 0.88]
    assert wider.latents.source.endswith(EARNED)
    assert opened(reuse, {}).trials == (TrialRow(False, Threshold(0.88, 0.2)),)


def test_closed_rows_allow_nothing_and_most_steps_are_tested_first() -> None:
    reuse = opened(RULES.of(*OTHER), {})

    assert (reuse.latents.thresholds, reuse.trials) == ((), (TrialRow(False, Threshold(0.95, 0.5)),))
    counts = {(False, 0.5): TURN_SAMPLES}
    assert opened(RULES.of(*OTHER), counts).trials == (TrialRow(False, Threshold(0.95, 0.4)),)


def test_rows_inherit_threshold_of_rows_with_more_steps() -> None:
    found = moved(RULES.of(*OTHER), OTHER, steps20=0.95, steps10=0.93, steps25=CLOSED)

    assert [row.min_similarity for row in found.latents.thresholds] == [0.93, 0.93, 0.95, 0.95, CLOSED]
    assert [round(row.saved_share * 50) for row in opened(found, {}).latents.thresholds] == [5, 10, 15, 20]


def test_images_begin_closed_against_known_model_and_name_rejected_prior() -> None:
    images = RULES.of(*OTHER, "sha256:large").images

    assert (images.thresholds, images.earned) == (CLOSED_ROWS[ReuseKind.IMAGES], True)
    assert images.reference_model_digest == "sha256:large"
    assert images.source.startswith(UNEARNED)
    assert "prior of MoDM for openai/clip-vit-large-patch14 does not hold" in images.source
    unknown = RULES.of(*OTHER).images
    assert (unknown.thresholds, unknown.earned) == ((), False)
    assert keeps_image(0, RULES.keeping(*OTHER))
    assert not keeps_image(0, replace(RULES, earns=False).keeping(*OTHER))


def test_images_begin_with_prior_of_their_encoder() -> None:
    images = RULES.of("another-digest", CLIP_VIT_L_14.digest, "sha256:large").images

    assert images.thresholds == tuple(Threshold(0.3, step / 50) for step in (5, 10, 15, 20, 25, 30))
    assert (images.source, images.alpha) == ("prior of MoDM for openai/clip-vit-large-patch14", 0.95)


def test_row_of_fewest_samples_is_tested_first() -> None:
    reuse, image = RULES.of(*OTHER, "sha256:large"), Threshold(0.3, 0.6)

    assert [tested.from_image for tested in opened(reuse, {(False, 0.5): 3}).trials] == [True, False]
    assert opened(reuse, {(True, 0.6): 3}).trials[1] == TrialRow(True, image, 3)


def test_profile_of_another_pair_does_not_widen_images() -> None:
    pair = changed(
        LATENT_PROFILE, start=ReuseKind.IMAGES, reference="large", reference_digest="sha256:large", rows=LATENTS.rows
    )
    rules = replace(RULES, profiles=ProfileSet((pair,)))

    assert rules.of("sha256:heavy", "sha256:clip", "sha256:large").images.earned
    assert not rules.of("sha256:heavy", "sha256:clip", "sha256:heavy").images.earned
