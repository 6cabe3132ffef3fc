"""Files of profiles: written and read back, rejected by field, and merged."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.generation import Scheduler
from pentimento.policies.residual_pipelining import PipeliningBound
from pentimento.profiles.catalogue import ProfileSet, check_continues, read_profiles, write_profiles
from pentimento.profiles.checks import parse_profiles
from pentimento.profiles.costs import read_costs
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfilePromise,
    ReuseKind,
    profiles_to_json,
)
from pentimento.profiles.kinds import (
    handover_row,
    latest_start,
    lora_row,
    reuse_share,
    taken_steps,
)
from pentimento.profiles.rules import ImageSample, LateSample, ThresholdRule
from tests.support.profiles import (
    BAD,
    GOOD,
    HANDOVER_PROFILE,
    HANDOVER_ROWS,
    LATENT_PROFILE,
    PIPELINING_PROFILE,
    STEPS_PROFILE,
    changed,
    reuse_step,
    thinned_row,
)
from tests.unit.profiles.test_costs import PROFILE as COSTS

IMAGES = changed(
    LATENT_PROFILE, start=ReuseKind.IMAGES, model="light", model_digest="sha256:light", reference_digest="sha256:heavy"
)
NEON = MeasuredAdapter("sha256:neon", 0.8)
EDGES = PIPELINING_PROFILE.of.adapters[0]
STEPS = replace(STEPS_PROFILE, rows=(thinned_row(0, 25, ThresholdRule.LOWER_BOUND, share=0.99),))
LATE = [LateSample(0.999, 0.99, 0.998)] * 59 + [LateSample(0.98, 0.97, 0.998)]
LORA = Profile(
    ProfileKind.LORA,
    ProfiledModel("heavy", "sha256:heavy", adapters=(MeasuredAdapter("sha256:neon", name="neon"),)),
    ProfileConditions(50),
    ProfilePromise(rule=ThresholdRule.MEAN),
    rows=(lora_row(1, LATE),),
)
ALL = (LATENT_PROFILE, IMAGES, STEPS, HANDOVER_PROFILE, LORA, PIPELINING_PROFILE)


def test_profiles_of_all_kinds_are_read_back(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(profiles_to_json(*ALL))

    assert read_profiles([tmp_path]).profiles == ALL
    assert read_costs([tmp_path]) == ()


def test_profile_file_has_a_line_for_each_row() -> None:
    text = profiles_to_json(LATENT_PROFILE)

    assert sum('"skipped_steps"' in line for line in text.splitlines()) == len(LATENT_PROFILE.rows)
    assert '"start": "latents"' in text and '"scheduler"' not in text


def row(of: Profile, **fields: Any) -> Profile:
    return replace(of, rows=(replace(of.rows[0], **fields),))


def at(of: Profile, **place: float) -> Profile:
    return row(of, at={**of.rows[0].at, **place})


@pytest.mark.parametrize(
    ("profile", "wrong"),
    [
        pytest.param(changed(LATENT_PROFILE, alpha=1.5), "asked.alpha: must be at least 0 and at most 1", id="alpha"),
        pytest.param(changed(LATENT_PROFILE, alpha=0), "asked.alpha: must be above 0", id="alpha-of-nothing"),
        pytest.param(changed(LATENT_PROFILE, model_digest=""), "of.model_digest: must name a digest", id="model"),
        pytest.param(changed(LATENT_PROFILE, encoder_digest=""), "of.encoder_digest: must name", id="encoder"),
        pytest.param(changed(LATENT_PROFILE, reference_digest=""), "of.reference_digest: must name", id="reference"),
        pytest.param(changed(LATENT_PROFILE, start=None), "conditions.start: is missing", id="start"),
        pytest.param(replace(LATENT_PROFILE, rows=()), "rows: must have at least one entry", id="no-rows"),
        pytest.param(row(LATENT_PROFILE, allowed={"mean": 2.0}), "rows[0].allowed.mean: must be at l", id="cosine"),
        pytest.param(
            row(LATENT_PROFILE, allowed={"luck": 0.5}), "rows[0].allowed.luck: must be one of minimum", id="rule"
        ),
        pytest.param(row(LATENT_PROFILE, count=0), "rows[0].count: must be at least 1", id="no-samples"),
        pytest.param(row(LATENT_PROFILE, kept=81), "rows[0].kept: must be 0 to 80, got 81", id="kept-more-than-all"),
        pytest.param(row(LATENT_PROFILE, kept=-1), "rows[0].kept: must be 0 to 80, got -1", id="kept-below-0"),
        pytest.param(row(LATENT_PROFILE, at={}), "rows[0].at.skipped_steps: is missing", id="place"),
        pytest.param(
            at(LATENT_PROFILE, first_step=1), "rows[0].at.first_step: is not known", id="place-of-another-kind"
        ),
        pytest.param(
            at(LATENT_PROFILE, skipped_steps=50), "rows[0].at.skipped_steps: must be above 0 and", id="all-steps"
        ),
        pytest.param(
            replace(LATENT_PROFILE, rows=(reuse_step(5, 1),) * 2),
            "rows[1].at.skipped_steps: must be above 5",
            id="step-twice",
        ),
        pytest.param(changed(STEPS, model_digest=""), "of.model_digest", id="steps-model"),
        pytest.param(changed(STEPS, adapters=(NEON, EDGES)), "of.adapters: must be ControlNets before", id="adapters"),
        pytest.param(at(STEPS, first_step=30), "rows[0]: must be a part of 50 steps, got 25 from 30 on", id="beyond"),
        pytest.param(at(STEPS, first_step=-1), "rows[0]: must be a part of 50 steps", id="before-the-first"),
        pytest.param(at(STEPS, resume_step=6), "rows[0]: must be a part of 50 steps", id="before-resumed"),
        pytest.param(at(STEPS, spacing=3.5), "rows[0].at.spacing: must be at least 1 and at most 3", id="spacing"),
        pytest.param(at(STEPS, least_similarity=2), "rows[0].at.least_similarity: must be at", id="least-similarity"),
        pytest.param(changed(HANDOVER_PROFILE, model_digest=""), "of.model_digest: must name", id="heavy"),
        pytest.param(changed(HANDOVER_PROFILE, reference_digest=""), "of.reference_digest: must name", id="light"),
        pytest.param(replace(HANDOVER_PROFILE, rows=()), "rows: must be 1 to 100, got 0", id="no-shares"),
        pytest.param(
            replace(HANDOVER_PROFILE, rows=HANDOVER_ROWS[:1] * 101), "rows: must be 1 to 100, got 101", id="shares"
        ),
        pytest.param(
            replace(HANDOVER_PROFILE, rows=HANDOVER_ROWS[:1] * 2), "rows: must have each share once", id="share-twice"
        ),
        # 95 of 100 are not surely 95 %, and not all; 100 of 100 are both. The counts do not decide the mean.
        pytest.param(
            row(HANDOVER_PROFILE, kept=95),
            "rows[0].allowed: must be what 95 kept of 100 allow, are not for minimum",
            id="minimum-without-counts",
        ),
        pytest.param(
            row(HANDOVER_PROFILE, kept=95, allowed={"lower_bound": 0.5}), "are not for lower_bound", id="bound-without"
        ),
        pytest.param(
            row(HANDOVER_PROFILE, allowed={"minimum": 0.5, "mean": 0.5}), "are not for lower_bound", id="bound-lacks"
        ),
        pytest.param(row(HANDOVER_PROFILE, allowed={"lower_bound": 0.5}), "are not for minimum", id="minimum-lacks"),
        pytest.param(changed(LORA, adapters=()), "of.adapters: must be one, got 0", id="no-lora"),
        pytest.param(at(LORA, steps=51), "rows[0].at.steps: must be at least 0 and at most 50", id="later-than-all"),
        pytest.param(
            changed(PIPELINING_PROFILE, adapters=(EDGES, NEON)), "of.adapters: must be one, got 2", id="two-nets"
        ),
        pytest.param(
            at(PIPELINING_PROFILE, first_step=50), "first_step: must be below step_count, 50, got 50", id="last-step"
        ),
    ],
)
def test_parse_profiles_refuses_contradiction_by_field(profile: Profile, wrong: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parse_profiles(profiles_to_json(profile))
    assert "profiles[0]." in raised.value.message and wrong in raised.value.message


def document(**changes: Any) -> str:
    (entry,) = json.loads(profiles_to_json(LATENT_PROFILE))["profiles"]
    return json.dumps({"format": 2, "profiles": [{**entry, **changes}]})


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "must be JSON"),
        ('{\n"format": 2,\n}', "line 3"),
        ("[" * 100_000, "must be JSON"),
        ("[]", "must be a JSON object"),
        ("3", "must be a JSON object"),
        ('{"format": 3, "profiles": []}', "format: must be 2, got 3"),
        ('{"format": 1, "bounds": []}', "got 1: `pentimento profile` measures older profiles again"),
        ('{"profiles": []}', "format: must be 2, got None"),
        ('{"format": 2}', "profiles: must be a list"),
        ('{"format": 2, "profiles": [1]}', "profiles[0]: must be an object"),
        ('{"format": 2, "profiles": [], "more": 1}', "more: is not known"),
        (document(surprise=1), "profiles[0].surprise: is not known"),
        (document(kind="luck"), "profiles[0].kind: must be one of cost, reuse"),
        (document(asked={"rule": "luck"}), "profiles[0].asked.rule: must be one of minimum, lower_bound, mean"),
    ],
)
def test_read_profiles_names_file_and_fault(text: str, wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)

    with pytest.raises(InvalidArgument) as raised:
        read_profiles([path])
    assert str(path) in raised.value.message and wrong in raised.value.message


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_read_profiles_names_unreadable_file(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "absent.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=r"lora_bounds: .*absent\.json"):
        read_profiles([path], "lora_bounds")


@given(st.binary(max_size=60).map(lambda data: data.decode("latin-1")) | st.text(max_size=60))
def test_parse_profiles_refuses_rubbish_by_type(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_profiles(text)


@pytest.mark.parametrize("profile", ALL)
def test_read_profiles_refuses_second_profile_of_subject(profile: Profile, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(profiles_to_json(profile))

    with pytest.raises(InvalidArgument, match=r"b\.json: .* is profiled as in another file"):
        read_profiles([tmp_path])


def test_read_profiles_takes_the_profile_of_the_last_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    for folder, profiles in ((shipped, (STEPS, LORA)), (own, (replace(STEPS, rows=()),))):
        folder.mkdir()
        (folder / "all.json").write_text(profiles_to_json(*profiles))

    with caplog.at_level(logging.INFO):
        found = read_profiles([shipped, own]).profiles

    assert sorted(found, key=lambda one: one.kind.value) == [LORA, replace(STEPS, rows=())]
    assert [record.getMessage() for record in caplog.records] == [
        f"{own / 'all.json'} replaces the steps profile of {STEPS.of.model}"
    ]


def test_read_profiles_keeps_profiles_that_differ_by_adapters(tmp_path: Path) -> None:
    for name, adapters in (("a", ()), ("b", (NEON,)), ("c", (EDGES, NEON))):
        (tmp_path / f"{name}.json").write_text(profiles_to_json(changed(STEPS, adapters=adapters)))
    (tmp_path / "README.md").write_text("no profile")

    assert [one.of.adapters for one in read_profiles([tmp_path]).profiles] == [(), (NEON,), (EDGES, NEON)]


def test_write_profiles_replaces_same_subject_and_keeps_others(tmp_path: Path) -> None:
    path, other = tmp_path / "all.json", changed(LORA, model_digest="sha256:light", model="light")
    again, costs = replace(LORA, rows=()), (COSTS,)
    write_profiles(path, [other, LORA])
    write_profiles(path, costs=costs)

    write_profiles(path, [again])

    assert read_profiles([path]).profiles == (again, other)
    assert read_costs([path]) == costs
    write_profiles(path, costs=[replace(costs[0], step_count=9), replace(costs[0], device="cuda")])
    assert [(one.device, one.step_count) for one in read_costs([path])] == [("cpu", 9), ("cuda", 2)]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"encoder_digest": "sha256:e"}, "encoder_digest"),
        ({"scheduler": Scheduler.EULER}, "scheduler"),
        ({"step_count": 20}, "step_count"),
        ({"guidance_scale": 3.0}, "guidance_scale"),
        ({"alpha": 0.9}, "alpha"),
        ({"quality": "other"}, "quality"),
        ({"prompts": "others.txt"}, "prompts"),
        ({"adapters": (NEON,)}, "adapters"),
        ({"patch_step": 1}, "patch_step"),
    ],
)
def test_check_continues_names_first_difference(changes: dict[str, Any], field: str) -> None:
    check_continues(changed(STEPS, rule=ThresholdRule.MEAN), STEPS)
    with pytest.raises(InvalidArgument, match=rf"profile\.{field}: was .* rows cannot be added"):
        check_continues(changed(STEPS, **changes), STEPS)


# Hand-overs, LoRAs and residuals


def test_reuse_share_stops_before_first_failure() -> None:
    """A hundred of a hundred, 99, 60, and then all again, which is luck."""
    assert reuse_share(HANDOVER_PROFILE) == 0.2
    assert reuse_share(HANDOVER_PROFILE, ThresholdRule.MINIMUM) == 0.1
    assert reuse_share(replace(HANDOVER_PROFILE, rows=HANDOVER_ROWS[3:])) == 0.0


def test_handover_row_counts_kept_images_and_mean_share() -> None:
    found = handover_row(0.2, [GOOD, GOOD, BAD], 0.95)

    assert (found.count, found.kept, found.figures, found.allowed) == (3, 2, {"share": 0.94}, {})


@pytest.mark.parametrize(
    ("steps", "share", "taken"), [(50, 0.0, 50), (50, 0.1, 45), (50, 0.3, 35), (12, 0.5, 6), (12, 0.9, 1), (5, 0.9, 0)]
)
def test_taken_steps_equal_frontdoor(steps: int, share: float, taken: int) -> None:
    assert taken_steps(steps, share) == taken


def test_lora_row_has_means_and_lowest_values() -> None:
    found = lora_row(7, [LateSample(0.999, 0.9, 0.5), LateSample(0.9, 0.7, 0.25)])

    assert (found.at, found.count, found.kept, found.allowed) == ({"steps": 7}, 2, 0, {})
    assert (found.figures["mean_cosine"], found.figures["lowest_cosine"]) == (0.9495, 0.9)
    assert (found.figures["mean_strength"], found.figures["lowest_strength"]) == (0.8, 0.7)
    assert found.figures["mean_alike"] == 0.375
    assert (LORA.rows[0].count, LORA.rows[0].kept, LORA.rows[0].allowed) == (60, 59, {"mean": 1})


def test_latest_starts_belong_to_model() -> None:
    other = changed(LORA, model_digest="sha256:light")

    assert ProfileSet((LORA, other, STEPS)).latest_starts("sha256:heavy") == {"sha256:neon": 0.02}
    assert latest_start(LORA, ThresholdRule.MINIMUM) == 0.0


def test_pipelining_bounds_belong_to_model_and_controlnet() -> None:
    layout = changed(
        PIPELINING_PROFILE, adapters=(replace(EDGES, digest="sha256:layout"),), rows=PIPELINING_PROFILE.rows[:1]
    )
    light = at(changed(PIPELINING_PROFILE, model_digest="sha256:light", rows=PIPELINING_PROFILE.rows[:1]), first_step=9)
    found = ProfileSet((light, PIPELINING_PROFILE, layout))

    assert found.pipelining("sha256:heavy", "sha256:edges") == (PipeliningBound(20, 0), PipeliningBound(50, 4))
    assert found.pipelining("sha256:heavy", "sha256:layout") == (PipeliningBound(50, 4),)
    assert found.pipelining("sha256:light", "sha256:edges") == (PipeliningBound(50, 9),)
    assert found.pipelining("sha256:light", "sha256:layout") == ()


def test_row_of_one_good_image_is_allowed_by_minimum_alone() -> None:
    assert handover_row(0.5, [ImageSample(1.0, 1.0)], 0.9).allowed == {"minimum": 0.5}
