"""Format profiles as text: a line for each row, and the total that each rule allows."""

from collections.abc import Callable, Iterator

from pentimento.profiles.document import Profile, ProfileKind, ProfileRow
from pentimento.profiles.kinds import latest_start, options, profile_name, reuse_share, taken_steps
from pentimento.profiles.rules import ThresholdRule


def described(profile: Profile) -> str:
    return "\n".join(_TABLES[profile.kind](profile))


def _reuse(profile: Profile) -> Iterator[str]:
    pairs = max((row.count for row in profile.rows), default=0)
    yield f"{profile_name(profile)}, {pairs} pairs"
    yield "  K/N     minimum  lower bound  mean"
    for row in profile.rows:
        found = (row.by(rule) for rule in ThresholdRule)
        columns = "  ".join(f"{'none' if value is None else f'{value:.3f}':>9}" for value in found)
        yield f"  {row.place('skipped_steps'):2}/{profile.conditions.step_count} {columns}"


def _steps(profile: Profile) -> Iterator[str]:
    step_count = profile.conditions.step_count
    yield f"{profile_name(profile)}, {step_count} steps, {profile.asked.quality}"
    yield "  resumed  spacing  from  taken  in all    kept       mean   allowed by"
    for row in profile.rows:
        first, taken = row.place("first_step"), row.place("taken_count")
        yield (
            f"  {row.place('resume_step') or '':7}  {row.at.get('spacing', 1.0):7g}  {first:4}  {taken:5}"
            f"  {first + taken:6}  {_kept(row)}  {row.figures['share']:.4f}   {_rules(row)}"
        )
    for rule in ThresholdRule:
        least = min((option.total for option in options(profile, step_count, rule)), default=None)
        yield f"  {rule.value}: {'none' if least is None else f'{least} steps at the least'}"


def _handover(profile: Profile) -> Iterator[str]:
    of, step_count = profile.of, profile.conditions.step_count
    yield f"{of.model} from images of {of.reference}, {step_count} steps, {profile.asked.quality}"
    share = profile.measured.figures["light_share"]
    yield f"  {of.reference}'s own images have {share:.4f} of the quality from noise"
    yield "  spared  taken    kept       mean   allowed by"
    for row in profile.rows:
        share = row.at["reuse_share"]
        taken = taken_steps(step_count, share)
        yield f"  {share:6g}  {taken:5}  {_kept(row)}  {row.figures['share']:.4f}   {_rules(row)}"
    for rule in ThresholdRule:
        yield f"  {rule.value}: reuse_share {reuse_share(profile, rule):g}"


def _lora(profile: Profile) -> Iterator[str]:
    step_count, rule = profile.conditions.step_count, profile.asked.rule.value
    latest, alike = round(latest_start(profile) * step_count), profile.measured.figures["alike_steps"]
    found = f"K = {latest} of {step_count} by {rule}; {alike:g} by Katz's rule"
    yield f"{profile.of.adapters[0].name} of {profile.of.model}: {found}"
    yield "  K/N    kept       cosine, lowest   strength, lowest  alike  allowed by"
    for row in profile.rows:
        of = row.figures
        yield (
            f"  {row.place('steps'):2}/{step_count}  {_kept(row)}"
            f"  {of['mean_cosine']:.4f}  {of['lowest_cosine']:.4f}   {of['mean_strength']:.4f}"
            f"  {of['lowest_strength']:.4f}    {of['mean_alike']:.4f}  {_rules(row)}"
        )


def _kept(row: ProfileRow) -> str:
    return f"{row.kept:4}/{row.count:<4}"


def _rules(row: ProfileRow) -> str:
    return ", ".join(row.allowed) or "none"


_TABLES: dict[ProfileKind, Callable[[Profile], Iterator[str]]] = {
    ProfileKind.REUSE: _reuse,
    ProfileKind.STEPS: _steps,
    ProfileKind.FEATURES: _steps,
    ProfileKind.HANDOVER: _handover,
    ProfileKind.LORA: _lora,
}
