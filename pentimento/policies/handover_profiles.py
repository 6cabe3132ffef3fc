"""A hand-over profile: how many steps a cascade's later model may leave out because it starts from the picture before
it (DiffServe, section 5), as measured of that pair, and its file.

`pentimento bench handover-profile` writes the files, `pentimento models add-cascade --handover-profile` registers a
cascade with what they allow (`profiled_cascades`). The rules by which a share is allowed are those of
`thinning_profiling`: a sample is the later model's picture from the earlier one's, compared with the later model's own
from noise, of the same prompt and seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pentimento.domain.errors import InvalidArgument
from pentimento.files.documents import document_from_json, document_to_json
from pentimento.files.json_values import ValueRange
from pentimento.policies.selector_profiling import REQUIRED_SHARE, ThresholdRule, share_is_surely
from pentimento.policies.thinning_profiling import ThinnedSample, allows, mean_share

FORMAT = 1
DIGITS = 4

# As many prompts as the command takes, and so many rows, are counted in a blink.
MAX_ROWS = 100
Count = Annotated[int, ValueRange(1, 100_000)]
Share = Annotated[float, ValueRange(0.0, 1.0)]
# Of a quality, which may be a cosine and below 0.
Ratio = Annotated[float, ValueRange(-1e6, 1e6)]


@dataclass(frozen=True)
class HandoverRow:
    """With a `reuse_share` of the later model's steps left out so many pictures were painted, of which so many kept
    alpha; `mean_share` of the quality from noise is left in the mean. `allowed` says which rules allow it by itself."""

    reuse_share: Share
    taken_count: Count
    picture_count: Count
    kept_count: int
    mean_share: Ratio
    allowed: tuple[ThresholdRule, ...] = ()


@dataclass(frozen=True)
class HandoverProfile:
    """What was measured of a pair; `step_count` are the later model's steps from noise. `light_share`: the share of
    that quality which the earlier model's own pictures have in the mean. `alpha` is the share that was asked for,
    `rule` the one that the file is to be used by."""

    light: str
    light_digest: str
    heavy: str
    heavy_digest: str
    step_count: Count
    guidance_scale: Annotated[float, ValueRange(0.0)]
    encoder: str
    encoder_digest: str
    quality: str
    alpha: Share
    rule: ThresholdRule
    light_share: Ratio
    rows: tuple[HandoverRow, ...]
    prompts: str = ""
    build_version: str = ""
    measured_at: str = ""

    def reuse_share(self, rule: ThresholdRule | None = None) -> float:
        """Return the largest share that a rule allows, by default the profile's own; 0 for none. No share beyond one
        that it does not allow: what holds there is luck."""
        found = 0.0
        for row in sorted(self.rows, key=lambda row: row.reuse_share):
            if (rule or self.rule) not in row.allowed:
                break
            found = row.reuse_share
        return found


def taken_steps(step_count: int, reuse_share: float) -> int:
    """Return how many of the later model's steps are taken where that share (0..1) of them is spared; 0 for none."""
    return int(step_count * (1.0 - reuse_share) + 1e-9)


def handover_row(reuse_share: float, taken_count: int, samples: Sequence[ThinnedSample], alpha: float) -> HandoverRow:
    """Return what the file says of the pictures of one share."""
    return HandoverRow(
        reuse_share=reuse_share,
        taken_count=taken_count,
        picture_count=len(samples),
        kept_count=sum(sample.keeps(alpha) for sample in samples),
        mean_share=round(mean_share(samples), DIGITS),
        allowed=tuple(rule for rule in ThresholdRule if allows(samples, alpha, rule)),
    )


def handover_to_json(profile: HandoverProfile) -> str:
    """Return the text of its file."""
    return document_to_json(profile, FORMAT)


def handover_from_json(text: str, where: str = "profile") -> HandoverProfile:
    """Return the profile. Raises InvalidArgument naming the line of what is no JSON, or the field below `where` that is
    missing, unknown, of another type, outside its limits or not what other fields say."""
    profile = document_from_json(HandoverProfile, text, FORMAT, where)
    for field in ("light_digest", "heavy_digest"):
        if not getattr(profile, field):
            raise InvalidArgument.of(f"{where}.{field}", "must name a digest")
    if not 1 <= len(profile.rows) <= MAX_ROWS:
        raise InvalidArgument.of(f"{where}.rows", f"must be 1 to {MAX_ROWS}, got {len(profile.rows)}")
    if len({row.reuse_share for row in profile.rows}) < len(profile.rows):
        raise InvalidArgument.of(f"{where}.rows", "must have each share once")
    for index, row in enumerate(profile.rows):
        _check_row(row, profile.step_count, f"{where}.rows[{index}]")
    return profile


def _check_row(row: HandoverRow, step_count: int, where: str) -> None:
    if row.taken_count != taken_steps(step_count, row.reuse_share):
        wrong = f"{row.taken_count} of {step_count} steps are not what {row.reuse_share:g} leaves of them"
        raise InvalidArgument.of(f"{where}.taken_count", wrong)
    if not 0 <= row.kept_count <= row.picture_count:
        raise InvalidArgument.of(f"{where}.kept_count", f"must be 0 to {row.picture_count}, got {row.kept_count}")
    # The mean's rule asks for more than these counts.
    counted = {
        ThresholdRule.MINIMUM: row.kept_count == row.picture_count,
        ThresholdRule.LOWER_BOUND: share_is_surely(row.kept_count, row.picture_count, REQUIRED_SHARE),
    }
    if wrong_rules := [rule.value for rule, holds in counted.items() if holds is not (rule in row.allowed)]:
        limit = f"must be what {row.kept_count} kept of {row.picture_count} allow, are not for {wrong_rules[0]}"
        raise InvalidArgument.of(f"{where}.allowed", limit)
