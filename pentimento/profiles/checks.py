"""Validate profiles by the rules of their kind."""

from collections.abc import Callable, Mapping

from pentimento.domain.errors import InvalidArgument
from pentimento.profiles.document import Profile, ProfileKind, ProfileRow, below, ordered, profiles_from_json
from pentimento.profiles.rules import Tally, ThresholdRule

MAX_ROWS = 10_000
MAX_HANDOVER_ROWS = 100
# Names of `at`: required and optional ones.
_AT = {
    ProfileKind.REUSE: ({"skipped_steps"}, set()),
    ProfileKind.STEPS: ({"first_step", "taken_count"}, {"resume_step", "least_similarity", "spacing"}),
    ProfileKind.FEATURES: (
        {"first_step", "taken_count"},
        {"resume_step", "renoised_steps", "retaken_steps", "least_similarity", "spacing"},
    ),
    ProfileKind.HANDOVER: ({"reuse_share"}, set()),
    ProfileKind.LORA: ({"steps"}, set()),
    ProfileKind.PIPELINING: ({"step_count", "first_step"}, set()),
}


def parse_profiles(text: str, where: str = "") -> tuple[Profile, ...]:
    """Return the checked profiles of a file's text. Raises InvalidArgument naming the field below `where`."""
    found = profiles_from_json(text, where)
    for index, profile in enumerate(found):
        _check(profile, below(where, f"profiles[{index}]"))
    return found


def _check(profile: Profile, where: str) -> None:
    """Raise InvalidArgument for a field that contradicts the kind or other fields."""
    for name in _digests_needed(profile):
        if not getattr(profile.of, name):
            raise InvalidArgument.of(f"{where}.of.{name}", "must name a digest")
    if profile.asked.alpha <= 0:
        raise InvalidArgument.of(f"{where}.asked.alpha", "must be above 0")
    if profile.of.adapters != ordered(profile.of.adapters):
        raise InvalidArgument.of(f"{where}.of.adapters", "must be ControlNets before LoRAs, each by digest")
    if len(profile.rows) > MAX_ROWS:
        raise InvalidArgument.of(f"{where}.rows", f"must be at most {MAX_ROWS}, got {len(profile.rows)}")
    for index, row in enumerate(profile.rows):
        _check_row(profile.kind, row, f"{where}.rows[{index}]")
    _CHECKS[profile.kind](profile, where)


def _digests_needed(profile: Profile) -> tuple[str, ...]:
    return {
        ProfileKind.REUSE: ("model_digest", "reference_digest", "encoder_digest"),
        ProfileKind.HANDOVER: ("model_digest", "reference_digest"),
    }.get(profile.kind, ("model_digest",))


def _check_row(kind: ProfileKind, row: ProfileRow, where: str) -> None:
    needed, possible = _AT[kind]
    if lacking := needed - row.at.keys():
        raise InvalidArgument.of(f"{where}.at.{min(lacking)}", "is missing")
    if unknown := row.at.keys() - needed - possible:
        raise InvalidArgument.of(f"{where}.at.{min(unknown)}", "is not known")
    if not 0 <= row.kept <= row.count:
        raise InvalidArgument.of(f"{where}.kept", f"must be 0 to {row.count}, got {row.kept}")
    if unknown := row.allowed.keys() - {rule.value for rule in ThresholdRule}:
        rules = ", ".join(rule.value for rule in ThresholdRule)
        raise InvalidArgument.of(f"{where}.allowed.{min(unknown)}", f"must be one of {rules}")


def _check_reuse(profile: Profile, where: str) -> None:
    if profile.conditions.start is None:
        raise InvalidArgument.of(f"{where}.conditions.start", "is missing")
    if not profile.rows:
        raise InvalidArgument.of(f"{where}.rows", "must have at least one entry")
    before, step_count = 0, profile.conditions.step_count
    for index, row in enumerate(profile.rows):
        skipped, here = row.place("skipped_steps"), f"{where}.rows[{index}]"
        if not before < skipped < step_count:
            limit = f"must be above {before} and below {step_count}, got {skipped}"
            raise InvalidArgument.of(f"{here}.at.skipped_steps", limit)
        before = skipped
        for rule, similarity in row.allowed.items():
            _check_within(similarity, -1.0, 1.0, f"{here}.allowed.{rule}")


def _check_within(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        raise InvalidArgument.of(where, f"must be at least {low:g} and at most {high:g}, got {value:g}")


def _check_steps(profile: Profile, where: str) -> None:
    for index, row in enumerate(profile.rows):
        first, taken, resumed = (row.place(name) for name in ("first_step", "taken_count", "resume_step"))
        _check_within(row.at.get("least_similarity", -1.0), -1.0, 1.0, f"{where}.rows[{index}].at.least_similarity")
        _check_within(row.at.get("spacing", 1.0), 1.0, 3.0, f"{where}.rows[{index}].at.spacing")
        # A hit skips steps after its start, but reuses features by the list of an image from noise.
        least = 0 if profile.kind is ProfileKind.FEATURES else resumed
        if resumed < 0 or not least <= first < first + taken <= profile.conditions.step_count:
            part = f"{taken} from {first} on, resumed at {resumed}"
            limit = f"must be a part of {profile.conditions.step_count} steps, got {part}"
            raise InvalidArgument.of(f"{where}.rows[{index}]", limit)
        again = row.place("renoised_steps")
        _check_within(again, 0, resumed, f"{where}.rows[{index}].at.renoised_steps")
        _check_within(row.place("retaken_steps"), 0, again, f"{where}.rows[{index}].at.retaken_steps")


def _check_handover(profile: Profile, where: str) -> None:
    if not 1 <= len(profile.rows) <= MAX_HANDOVER_ROWS:
        raise InvalidArgument.of(f"{where}.rows", f"must be 1 to {MAX_HANDOVER_ROWS}, got {len(profile.rows)}")
    if len({row.at["reuse_share"] for row in profile.rows}) < len(profile.rows):
        raise InvalidArgument.of(f"{where}.rows", "must have each share once")
    for index, row in enumerate(profile.rows):
        _check_within(row.at["reuse_share"], 0.0, 1.0, f"{where}.rows[{index}].at.reuse_share")
        # MEAN needs more than these counts.
        counted, found = (ThresholdRule.MINIMUM, ThresholdRule.LOWER_BOUND), Tally(row.count, row.kept)
        if wrong := [rule.value for rule in counted if found.allows(rule) is (row.by(rule) is None)]:
            limit = f"must be what {row.kept} kept of {row.count} allow, are not for {wrong[0]}"
            raise InvalidArgument.of(f"{where}.rows[{index}].allowed", limit)


def _check_lora(profile: Profile, where: str) -> None:
    _check_single_adapter(profile, where)
    for index, row in enumerate(profile.rows):
        _check_within(row.at["steps"], 0.0, profile.conditions.step_count, f"{where}.rows[{index}].at.steps")


def _check_pipelining(profile: Profile, where: str) -> None:
    _check_single_adapter(profile, where)
    for index, row in enumerate(profile.rows):
        count, first = row.place("step_count"), row.place("first_step")
        _check_within(count, 1, 10_000, f"{where}.rows[{index}].at.step_count")
        if not 0 <= first < count:
            limit = f"must be below step_count, {count}, got {first}"
            raise InvalidArgument.of(f"{where}.rows[{index}].at.first_step", limit)


def _check_single_adapter(profile: Profile, where: str) -> None:
    if len(profile.of.adapters) != 1:
        raise InvalidArgument.of(f"{where}.of.adapters", f"must be one, got {len(profile.of.adapters)}")


_CHECKS: Mapping[ProfileKind, Callable[[Profile, str], None]] = {
    ProfileKind.REUSE: _check_reuse,
    ProfileKind.STEPS: _check_steps,
    ProfileKind.FEATURES: _check_steps,
    ProfileKind.HANDOVER: _check_handover,
    ProfileKind.LORA: _check_lora,
    ProfileKind.PIPELINING: _check_pipelining,
}
