"""Cascades whose reuse shares are read from hand-over profiles (DiffServe, section 5).

A profile belongs to the hand-over between the models whose digests it names, by whatever names they are registered. It
promises what it was measured for: where a deployment asks for more of the quality, its pictures would have to be judged
anew, since the file has only counts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pentimento.domain.errors import InvalidArgument
from pentimento.domain.models import MAX_HANDOVER_PROFILE_BYTES, CascadeVariant, ReuseProfile
from pentimento.policies.handover_profiles import HandoverProfile, handover_from_json
from pentimento.policies.selector_profiling import ThresholdRule

FIELD = "handover_profiles"


@dataclass(frozen=True)
class ReusePromise:
    """What a deployment asks of hand-over profiles: the share of quality (0..1) that later models keep at least, and
    the rule by which all files are read; None for the one that each names."""

    alpha: float = 0.95
    rule: ThresholdRule | None = None


def with_profiled_shares(
    cascade: CascadeVariant, profiles: Sequence[str], digests: Mapping[str, str], promise: ReusePromise
) -> CascadeVariant:
    """Return the cascade with the shares that the texts of profiles allow. `digests` has those of its models, by name.
    Raises InvalidArgument naming the field of a profile that is none, is too large, promises less than is asked for or
    is of other models, and of a share that is stated beside a profile or has two."""
    if len(profiles) > len(cascade.handovers):
        limit = f"must be at most {len(cascade.handovers)}, one for a hand-over"
        raise InvalidArgument.of(FIELD, f"{limit}, got {len(profiles)}")
    for index, text in enumerate(profiles):
        cascade = _with_share(cascade, f"{FIELD}[{index}]", text, digests, promise)
    return cascade


def _with_share(
    cascade: CascadeVariant, field: str, text: str, digests: Mapping[str, str], promise: ReusePromise
) -> CascadeVariant:
    data = text.encode()
    if len(data) > MAX_HANDOVER_PROFILE_BYTES:
        raise InvalidArgument.of(field, f"must be at most {MAX_HANDOVER_PROFILE_BYTES} bytes, got {len(data)}")
    profile = handover_from_json(text, field)
    if profile.alpha < promise.alpha:
        limit = f"must be at least {promise.alpha:g}, the share of quality that is asked for here (--handover-alpha)"
        raise InvalidArgument.of(f"{field}.alpha", f"{limit}, got {profile.alpha:g}")
    number = _handover_of(cascade, field, profile, digests)
    handover = cascade.handovers[number]
    if handover.reuse_profile is not None:
        between = f"{cascade.models[number]} and {cascade.models[number + 1]}"
        raise InvalidArgument.of(field, f"must be the only one between {between}")
    if handover.reuse_share:
        stated = f"cascade.handovers[{number}].reuse_share"
        raise InvalidArgument.of(stated, f"must be 0 where a profile says it, got {handover.reuse_share:g}")
    rule = promise.rule or profile.rule
    read = ReuseProfile(f"sha256:{hashlib.sha256(data).hexdigest()}", profile.alpha, rule.value)
    profiled = replace(handover, reuse_share=profile.reuse_share(rule), reuse_profile=read)
    return replace(cascade, handovers=(*cascade.handovers[:number], profiled, *cascade.handovers[number + 1 :]))


def _handover_of(cascade: CascadeVariant, field: str, profile: HandoverProfile, digests: Mapping[str, str]) -> int:
    """The number of the hand-over between the models that were measured."""
    pairs = list(pairwise(cascade.models))
    known = [(digests[light], digests[heavy]) for light, heavy in pairs]
    measured = profile.light_digest, profile.heavy_digest
    if measured in known:
        return known.index(measured)
    for (light, heavy), (light_digest, heavy_digest) in zip(pairs, known, strict=True):
        if light_digest == profile.light_digest:
            limit = f"must be that of {heavy}, which comes after {light}, as it is registered: {heavy_digest}"
            raise InvalidArgument.of(f"{field}.heavy_digest", f"{limit}; measured was {_named(profile.heavy_digest)}")
    firsts = ", ".join(f"{light} {digests[light]}" for light, _ in pairs)
    limit = f"must be that of a model which another comes after, as it is registered: {firsts}"
    raise InvalidArgument.of(f"{field}.light_digest", f"{limit}; measured was {_named(profile.light_digest)}")


def _named(digest: str) -> str:
    return digest[:80]
