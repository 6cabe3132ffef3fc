"""A hand-over profile: how many steps a cascade's later model may leave out because it starts from the picture before
it (DiffServe, section 5), as measured of that pair, and its file.

`pentimento bench handover-profile` writes the files and prints the share, which goes into the file of a cascade that
`pentimento models add-cascade` registers. The rules by which a share is allowed are those of `thinning_profiling`: a
sample is the later model's picture from the earlier one's, compared with the later model's own from noise, of the same
prompt and seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pentimento.domain.errors import InvalidArgument
from pentimento.files.documents import document_from_json, document_to_json, read_document
from pentimento.files.json_values import ValueRange
from pentimento.policies.selector_profiling import ThresholdRule
from pentimento.policies.thinning_profiling import ThinnedSample, allows, mean_share

FORMAT = 1
DIGITS = 4

Count = Annotated[int, ValueRange(1)]
Share = Annotated[float, ValueRange(0.0, 1.0)]


@dataclass(frozen=True)
class HandoverRow:
    """With a `reuse_share` of the later model's steps left out so many pictures were painted, of which so many kept
    alpha; `mean_share` of the quality from noise is left in the mean. `allowed` says which rules allow it by itself."""

    reuse_share: Share
    taken_count: Count
    picture_count: Count
    kept_count: int
    mean_share: float
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
    guidance_scale: float
    encoder: str
    encoder_digest: str
    quality: str
    alpha: Share
    rule: ThresholdRule
    light_share: float
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


def handover_from_json(text: str) -> HandoverProfile:
    """Return the profile. Raises InvalidArgument naming the line of what is no JSON, or the field that is missing,
    unknown, of another type or outside its limits."""
    profile = document_from_json(HandoverProfile, text, FORMAT, "profile")
    for field in ("light_digest", "heavy_digest"):
        if not getattr(profile, field):
            raise InvalidArgument.of(f"profile.{field}", "must name a digest")
    for index, row in enumerate(profile.rows):
        if row.taken_count != taken_steps(profile.step_count, row.reuse_share):
            wrong = f"{row.taken_count} of {profile.step_count} steps are not what {row.reuse_share:g} leaves of them"
            raise InvalidArgument.of(f"profile.rows[{index}].taken_count", wrong)
    return profile


def read_handover_profile(path: Path) -> HandoverProfile:
    """Return the profile of a file. Raises InvalidArgument naming the file."""
    return read_document(path, handover_from_json, "handover_profiles")
