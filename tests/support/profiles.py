"""Profiles for tests: their rows, a changed copy, and one measured model of each kind."""

from dataclasses import fields, replace
from typing import Any

from pentimento.domain.adapters import AdapterKind
from pentimento.domain.generation import Scheduler
from pentimento.profiles.document import (
    MeasuredAdapter,
    Profile,
    ProfileConditions,
    ProfiledModel,
    ProfileKind,
    ProfilePromise,
    ProfileRow,
    ProfileSource,
    ReuseKind,
)
from pentimento.profiles.kinds import handover_row
from pentimento.profiles.rules import ImageSample, ThresholdRule


def reuse_step(
    skipped_steps: int,
    count: int,
    minimum: float | None = None,
    lower_bound: float | None = None,
    mean: float | None = None,
) -> ProfileRow:
    """Return a row of a reuse profile: K, samples, and the similarity by each rule."""
    found = {"minimum": minimum, "lower_bound": lower_bound, "mean": mean}
    allowed = {rule: similarity for rule, similarity in found.items() if similarity is not None}
    return ProfileRow({"skipped_steps": skipped_steps}, count, allowed=allowed)


def thinned_row(
    first_step: int, taken_count: int, *rules: ThresholdRule, share: float = 1.0, count: int = 100, **at: float
) -> ProfileRow:
    """Return a row of skipped steps that these rules allow."""
    place = {"first_step": first_step, "taken_count": taken_count, **at}
    allowed = {rule.value: float(first_step + taken_count) for rule in rules}
    return ProfileRow(place, count, count, allowed=allowed, figures={"share": share})


def changed(profile: Profile, **changes: Any) -> Profile:
    """Return the profile with other values of its fields, or of its parts' fields."""
    for name in ("of", "conditions", "asked", "measured"):
        part = getattr(profile, name)
        own = {one.name: changes.pop(one.name) for one in fields(part) if one.name in changes}
        profile = replace(profile, **{name: replace(part, **own)})
    return replace(profile, **changes)


REUSE_ROWS = (
    reuse_step(5, 80, 0.7, 0.6, 0.5),
    reuse_step(10, 80, 0.9, 0.8, 0.7),
    reuse_step(15, 80, None, None, 0.9),
)
LATENT_PROFILE = Profile(
    ProfileKind.REUSE,
    ProfiledModel("heavy", "sha256:heavy", "heavy", "sha256:heavy", "clip", "sha256:clip"),
    ProfileConditions(50, 50, start=ReuseKind.LATENTS),
    ProfilePromise(0.9, ThresholdRule.LOWER_BOUND, "clip_score"),
    rows=REUSE_ROWS,
)
STEPS_PROFILE = Profile(
    ProfileKind.STEPS,
    ProfiledModel("heavy", "sha256:heavy", encoder="clip", encoder_digest="sha256:clip"),
    ProfileConditions(50, scheduler=Scheduler.DDIM, guidance_scale=1.5),
    ProfilePromise(0.95, ThresholdRule.LOWER_BOUND, "clip_score"),
)
EDGES = MeasuredAdapter("sha256:edges", 1.0, AdapterKind.CONTROLNET, name="edges")
PIPELINING_PROFILE = Profile(
    ProfileKind.PIPELINING,
    ProfiledModel("heavy", "sha256:heavy", adapters=(EDGES,)),
    ProfileConditions(50),
    rows=(ProfileRow({"step_count": 50, "first_step": 4}), ProfileRow({"step_count": 20, "first_step": 0})),
)
GOOD, BAD = ImageSample(0.96, 1.0), ImageSample(0.9, 1.0)
HANDOVER_ROWS = (
    handover_row(0.5, [GOOD] * 100, 0.95),
    handover_row(0.1, [GOOD] * 100, 0.95),
    handover_row(0.2, [*([GOOD] * 99), BAD], 0.95),
    handover_row(0.3, [*([GOOD] * 60), *([BAD] * 40)], 0.95),
)
HANDOVER_PROFILE = Profile(
    ProfileKind.HANDOVER,
    ProfiledModel("heavy", "sha256:h", "light", "sha256:l", "clip", "sha256:c"),
    ProfileConditions(50, guidance_scale=5.0),
    ProfilePromise(0.95, ThresholdRule.LOWER_BOUND, "clip_score"),
    ProfileSource(figures={"light_share": 0.84}),
    HANDOVER_ROWS,
)
