"""Tables whose reuse is earned: what they begin with, what is in force, and which cell is tested."""

from dataclasses import replace

import pytest

from pentimento.domain.online_quality import ThresholdPosition
from pentimento.policies.cache_selection import SelectionRules, Threshold
from pentimento.policies.earned_reuse import CLOSED, TURN_SAMPLES
from pentimento.policies.published_reuse import CLIP_VIT_L_14, latent_prior
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

    assert (table.thresholds, table.alpha, table.earned) == (CLOSED_ROWS, 0.9, True)
    assert table.source.startswith(UNEARNED)
    assert "prior of NIRVANA for openai/clip-vit-large-patch14 does not hold" in table.source
    assert RULES.reuses_anything


def test_model_without_profile_begins_with_prior_of_its_encoder() -> None:
    table = RULES.of("another-digest", CLIP_VIT_L_14.digest).latents

    assert {row.min_similarity for row in table.thresholds} == {0.95}
    assert [round(row.saved_share * 50) for row in table.thresholds] == [5, 10, 15, 20, 25]
    assert (table.source, table.earned) == ("prior of NIRVANA for openai/clip-vit-large-patch14", True)


def test_prior_serves_exact_files_only() -> None:
    assert latent_prior(CLIP_VIT_L_14.digest) is not None
    other = replace(CLIP_VIT_L_14, files={**CLIP_VIT_L_14.files, "model.safetensors": "0" * 64})
    assert latent_prior(other.digest) is None
    assert latent_prior(None) is None


@pytest.mark.parametrize(
    "rules",
    [
        replace(RULES, earns=False),
        replace(RULES, bias=1),
        replace(RULES, base=SelectionRules(), given=frozenset({ReuseKind.LATENTS})),
    ],
    ids=["switched off", "a biased cache", "the operator's table"],
)
def test_nothing_is_earned_where_a_setting_decides(rules: ReuseRules) -> None:
    assert not rules.of(*OTHER).latents.earned
    assert opened(rules.of(*OTHER), {}).trial is None


def test_profile_is_a_head_start() -> None:
    digests = ("sha256:heavy", "sha256:clip")
    reuse = RULES.of(*digests)
    wider = moved(reuse, digests, steps10=0.88)

    assert (reuse.latents.thresholds, reuse.latents.earned) == (thresholds(LATENTS), True)
    assert [row.min_similarity for row in wider.latents.thresholds] == [0.7, 0.88]
    assert wider.latents.source.endswith(EARNED)
    assert opened(reuse, {}).trial == Threshold(0.88, 0.2)


def test_closed_rows_allow_nothing_and_most_steps_are_tested_first() -> None:
    reuse = opened(RULES.of(*OTHER), {})

    assert (reuse.latents.thresholds, reuse.trial) == ((), Threshold(0.95, 0.5))
    assert opened(RULES.of(*OTHER), {0.5: TURN_SAMPLES}).trial == Threshold(0.95, 0.4)


def test_rows_have_what_rows_of_more_steps_earned() -> None:
    found = moved(RULES.of(*OTHER), OTHER, steps20=0.95, steps10=0.93, steps25=CLOSED)

    assert [row.min_similarity for row in found.latents.thresholds] == [0.93, 0.93, 0.95, 0.95, CLOSED]
    assert [round(row.saved_share * 50) for row in opened(found, {}).latents.thresholds] == [5, 10, 15, 20]
