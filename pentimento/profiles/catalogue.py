"""Read a process's profiles from files and directories, and find them by digests and conditions."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from pentimento.domain.generation import FromImage, FromLatent, GenerationSpec, Route, Start
from pentimento.domain.models import MAX_HANDOVER_PROFILE_BYTES, CascadeVariant, ReuseProfile
from pentimento.files.json_values import json_files, read_document
from pentimento.files.private_files import replace_file
from pentimento.policies.residual_pipelining import PipeliningBound
from pentimento.policies.thinning import ThinningOption, ThinningRefusal, WholeReason
from pentimento.profiles.checks import parse_profiles
from pentimento.profiles.costs import ModelProfile, cost_entry, costs_key, read_costs
from pentimento.profiles.document import Profile, ProfileKind, ReuseKind, adapters_of, document_to_json, profile_entry
from pentimento.profiles.kinds import (
    caution,
    controlnets,
    hit_options,
    latest_start,
    options,
    pipelining_bounds,
    profile_name,
    reuse_share,
    reuses_images,
    uncovered,
)
from pentimento.profiles.rules import RuleChoice, ThresholdRule
from pentimento.settings import setting

logger = logging.getLogger(__name__)

HANDOVERS = "handover_profiles"
# Share of the full quality that skipped steps and hand-overs keep, unless the operator states one.
PROFILE_ALPHA = 0.95


def read_profiles(paths: Iterable[Path], setting: str = "profiles") -> "ProfileSet":
    """Return the profiles of files, and of all files (.json) of directories; costs are skipped (`costs`). A later path
    replaces the profiles of earlier ones on the same subjects.

    Raises InvalidArgument naming the file: for one that is wrong, and for the second of two on the same subject in one
    directory.
    """
    found: dict[tuple[object, ...], Profile] = {}
    for path in paths:
        here: dict[tuple[object, ...], Profile] = {}
        for file in json_files([path]):
            for profile in read_document(file, parse_profiles, setting):
                if profile.key in here:
                    raise InvalidArgument.of(setting, f"{file}: {profile.of.model} is profiled as in another file")
                here[profile.key] = profile
                if profile.key in found:
                    logger.info("%s replaces the %s profile of %s", file, profile.kind.value, profile.of.model)
        found |= here
    return ProfileSet(tuple(found.values()))


def write_profiles(path: Path, profiles: Iterable[Profile] = (), costs: Iterable[ModelProfile] = ()) -> None:
    """Write profiles to a file, in place of earlier ones on the same subject; the others stay, by kind and model.

    Raises InvalidArgument if the existing file is not a file of profiles.
    """
    exists = path.exists()
    found = {profile.key: profile for profile in (*(read_profiles([path]).profiles if exists else ()), *profiles)}
    measured = {costs_key(one): one for one in (*(read_costs([path]) if exists else ()), *costs)}
    entries = [cost_entry(one) for one in measured.values()]
    entries += [profile_entry(one) for one in sorted(found.values(), key=_place_in_file)]
    # A running suite reads it meanwhile.
    replace_file(path, document_to_json(entries))


def _place_in_file(profile: Profile) -> tuple[object, ...]:
    return (profile.kind.value, profile.of.model, tuple(one.name for one in profile.of.adapters))


def check_continues(profile: Profile, earlier: Profile) -> None:
    """Raise InvalidArgument naming the first field that differs in an earlier profile: other images or quality.

    The rule may differ: rows state the permissions of all rules.
    """
    ours, theirs = _measured_so(profile), _measured_so(earlier)
    for name, value in ours.items():
        if value != theirs[name]:
            raise InvalidArgument.of(
                f"profile.{name}", f"was {theirs[name]!r:.120}, not {value!r:.120}: rows cannot be added"
            )


def _measured_so(profile: Profile) -> dict[str, object]:
    of, how, asked = profile.of, profile.conditions, profile.asked
    return {
        **{name: getattr(of, name) for name in ("model_digest", "reference_digest", "encoder_digest", "adapters")},
        **{name: getattr(how, name) for name in ("scheduler", "step_count", "guidance_scale", "patch_step", "start")},
        **{"quality": asked.quality, "alpha": asked.alpha, "prompts": profile.measured.prompts},
    }


@dataclass(frozen=True)
class ProfileSet:
    """Hold the profiles of a process."""

    profiles: tuple[Profile, ...] = ()

    def of(self, *kinds: ProfileKind) -> tuple[Profile, ...]:
        """Return all profiles of some kinds."""
        return tuple(profile for profile in self.profiles if profile.kind in kinds)

    def check_encoder(self, encoder_digest: str, image_encoder_digest: str | None = None) -> None:
        """Raise FailedPrecondition naming the first reuse profile of another encoder: its similarities do not apply to
        this encoder. `image_encoder_digest`: of images; None: the same."""
        for profile in self.of(ProfileKind.REUSE):
            own = (image_encoder_digest if reuses_images(profile) else None) or encoder_digest
            if profile.of.encoder_digest != own:
                made = f"made for encoder {profile.of.encoder_digest}, not {own}"
                raise FailedPrecondition("SELECTOR_PROFILE_MISMATCH", f"{profile_name(profile)}: {made}")

    def reuse(
        self,
        start: ReuseKind,
        model_digest: str,
        encoder_digest: str | None,
        reference_digest: str | None = None,
        rule: ThresholdRule | None = None,
    ) -> Profile | None:
        """Return the profile of latents or images that this model reuses; None without one for these digests.

        None for the encoder or the reference accepts any. Of several, those made for `rule` are preferred, then the
        table with the highest similarities: its promise holds against every reference.
        """
        fitting = [
            profile
            for profile in self.of(ProfileKind.REUSE)
            if (profile.conditions.start, profile.of.model_digest) == (start, model_digest)
            and encoder_digest in (None, profile.of.encoder_digest)
            and reference_digest in (None, profile.of.reference_digest)
        ]
        return max(fitting, key=lambda profile: (profile.asked.rule is rule, caution(profile)), default=None)

    def steps(self, spec: GenerationSpec, model_digest: str, kind: ProfileKind = ProfileKind.STEPS) -> Profile | None:
        """Return the model's profile of skipped steps, or of that kind; None without one. Of several, the best match of
        the request's adapters, else of its ControlNets, then of its scheduler."""
        asked = adapters_of(spec)

        def nearness(profile: Profile) -> tuple[bool, bool, bool]:
            same_nets = controlnets(profile.of.adapters) == controlnets(asked)
            return profile.of.adapters == asked, same_nets, profile.conditions.scheduler is spec.scheduler

        found = [one for one in self.of(kind) if one.of.model_digest == model_digest]
        return max(found, key=nearness, default=None)

    def latest_starts(self, model_digest: str) -> dict[str, float]:
        """Return the shares of a model's schedule that may run without a LoRA, by the LoRA's digest."""
        found = (profile for profile in self.of(ProfileKind.LORA) if profile.of.model_digest == model_digest)
        return {profile.of.adapters[0].digest: latest_start(profile) for profile in found}

    def pipelining(self, model_digest: str, controlnet_digest: str) -> tuple[PipeliningBound, ...]:
        """Return the first steps of a ControlNet's residuals that may be one step old with that model; none without a
        profile of both."""
        for profile in self.of(ProfileKind.PIPELINING):
            if (profile.of.model_digest, profile.of.adapters[0].digest) == (model_digest, controlnet_digest):
                return pipelining_bounds(profile)
        return ()


@dataclass(frozen=True)
class StepProfiles:
    """Hold a deployment's profiles of skipped steps, or of steps that reuse deep features, the share of the quality
    that it requires, and its rule.

    A profile that promises less is not used. Without a rule each profile's own is used.
    """

    profiles: ProfileSet = field(default_factory=ProfileSet)
    alpha: float = PROFILE_ALPHA
    rule: ThresholdRule | None = None
    kind: ProfileKind = ProfileKind.STEPS

    def options(self, spec: GenerationSpec, route: Route) -> tuple[ThinningOption, ...]:
        """Return the ways to skip steps of a request on that route; empty if `refusal` has a reason."""
        profile = self.profiles.steps(spec, route.model_digest, self.kind)
        if profile is None or self._uncovered(profile, spec, route) is not None:
            return ()
        return self._found(profile, spec, route.start)

    def _found(self, profile: Profile, spec: GenerationSpec, start: Start) -> tuple[ThinningOption, ...]:
        match start:
            case FromLatent():
                return hit_options(profile, start, spec.num_inference_steps, self.rule)
            case FromImage():
                return ()
            case _:
                return options(profile, spec.num_inference_steps, self.rule)

    def refusal(self, spec: GenerationSpec, route: Route) -> ThinningRefusal | None:
        """Return why a request skips no step under any load; None if it may."""
        profile = self.profiles.steps(spec, route.model_digest, self.kind)
        if profile is None:
            named = "feature reuse" if self.kind is ProfileKind.FEATURES else "thinning"
            why = f"{spec.model} has no {named} profile of this digest"
            return ThinningRefusal(WholeReason.PROFILE_MISSING, why)
        refusal = self._uncovered(profile, spec, route)
        if refusal is not None or self._found(profile, spec, route.start):
            return refusal
        if isinstance(route.start, FromLatent | FromImage):
            why = "of hits that resume there, from a start that is no more similar, nothing may be left out"
            return ThinningRefusal(WholeReason.HIT_UNMEASURED, why)
        return ThinningRefusal(WholeReason.NOTHING_ALLOWED, "its profile allows no step to be left out")

    def _uncovered(self, profile: Profile, spec: GenerationSpec, route: Route) -> ThinningRefusal | None:
        if profile.asked.alpha < self.alpha:
            why = f"the profile promises {profile.asked.alpha:g} of the quality, {self.alpha:g} is asked for"
            return ThinningRefusal(WholeReason.PROFILE_PROMISES_LESS, why)
        if route.pipelined_from_step:
            why = "residuals that are a step old are those of a step that was taken"
            return ThinningRefusal(WholeReason.RESIDUALS_PIPELINED, why)
        return uncovered(profile, spec, route.lora_patch_step)


class FeatureReuseMode(Enum):
    """State which requests reuse features where a profile allows it: only if they ask for it, or unless they refuse
    it."""

    ASKED = "asked"
    AUTO = "auto"


@dataclass(frozen=True)
class ReusePromise:
    """Hold the share of quality (0..1) that a deployment requires of hand-over profiles, and the rule for all.

    Without a rule each profile's own is used.
    """

    alpha: float = PROFILE_ALPHA
    rule: ThresholdRule | None = None


@dataclass(frozen=True)
class PromiseSettings:
    """Hold what an operator requires of all profiles."""

    profile_alpha: float | None = setting(
        None,
        help="share of the full quality that profiles must promise; empty: 0.95, of reuse the plan's if followed, else "
        "the profiles'",
        minimum=0,
        maximum=1,
    )
    profile_rule: RuleChoice = setting(
        RuleChoice.PROFILE,
        help="quality that profiles must keep: of every image (minimum), of 95 % (lower_bound), on average "
        "(mean), by their own rule (profile)",
    )

    @property
    def of_reuse(self) -> ReusePromise:
        """Return the requirements for profiles of skipped steps and hand-overs."""
        alpha = PROFILE_ALPHA if self.profile_alpha is None else self.profile_alpha
        return ReusePromise(alpha, self.profile_rule.rule)


class HandoverMode(Enum):
    """State when later stages start from earlier images: if the pair was measured for it, or never."""

    AUTO = "auto"
    OFF = "off"


@dataclass(frozen=True)
class HandoverShare:
    """Hold the share (0..1) of a later model's steps that an earlier model's image saves, and its reason."""

    share: float
    reason: str


@dataclass(frozen=True)
class HandoverProfiles:
    """Hold a deployment's hand-over profiles, found by the digests of both models, and the required promise."""

    profiles: ProfileSet = field(default_factory=ProfileSet)
    promise: ReusePromise = field(default_factory=ReusePromise)

    def share(self, light_digest: str, heavy_digest: str) -> HandoverShare:
        """Return the share that a pair's profile allows (DiffServe, section 5); 0 with the reason if it allows none."""
        pair = (light_digest, heavy_digest)
        found = (
            profile
            for profile in self.profiles.of(ProfileKind.HANDOVER)
            if (profile.of.reference_digest, profile.of.model_digest) == pair
        )
        profile = next(found, None)
        if profile is None:
            return HandoverShare(0.0, "no hand-over profile of these weights")
        if profile.asked.alpha < self.promise.alpha:
            why = f"promises {profile.asked.alpha:g} of the quality, {self.promise.alpha:g} is asked for"
            return HandoverShare(0.0, f"the hand-over profile {why}")
        rule = self.promise.rule or profile.asked.rule
        share, by = reuse_share(profile, rule), f"alpha {profile.asked.alpha:g} by {rule.value}"
        told = "the hand-over profile" if share else "the hand-over profile allows no step to be left out"
        return HandoverShare(share, f"{told}, {by}")


def with_profiled_shares(
    cascade: CascadeVariant, profiles: Sequence[str], digests: Mapping[str, str], promise: ReusePromise
) -> CascadeVariant:
    """Return the cascade with the shares that the texts of hand-over profiles allow (DiffServe, section 5).

    `digests` has its models' digests by name. Raises InvalidArgument naming the field of a profile that is wrong, too
    large, promises too little or is of other models, and of a share that is stated although a profile gives one.
    """
    if len(profiles) > len(cascade.handovers):
        limit = f"must be at most {len(cascade.handovers)}, one for a hand-over"
        raise InvalidArgument.of(HANDOVERS, f"{limit}, got {len(profiles)}")
    for index, text in enumerate(profiles):
        cascade = _with_share(cascade, f"{HANDOVERS}[{index}]", text, digests, promise)
    return cascade


def _with_share(
    cascade: CascadeVariant, where: str, text: str, digests: Mapping[str, str], promise: ReusePromise
) -> CascadeVariant:
    data = text.encode()
    if len(data) > MAX_HANDOVER_PROFILE_BYTES:
        raise InvalidArgument.of(where, f"must be at most {MAX_HANDOVER_PROFILE_BYTES} bytes, got {len(data)}")
    found = parse_profiles(text, where)
    if [profile.kind for profile in found] != [ProfileKind.HANDOVER]:
        raise InvalidArgument.of(where, "must be one profile of a hand-over")
    profile = found[0]
    if profile.asked.alpha < promise.alpha:
        limit = f"must be at least {promise.alpha:g}, the share of quality that is asked for here (--profile-alpha)"
        raise InvalidArgument.of(f"{where}.asked.alpha", f"{limit}, got {profile.asked.alpha:g}")
    number = _handover_of(cascade, where, profile, digests)
    handover = cascade.handovers[number]
    if handover.reuse_profile is not None:
        between = f"{cascade.models[number]} and {cascade.models[number + 1]}"
        raise InvalidArgument.of(where, f"must be the only one between {between}")
    if handover.reuse_share:
        stated = f"cascade.handovers[{number}].reuse_share"
        raise InvalidArgument.of(stated, f"must be 0 where a profile says it, got {handover.reuse_share:g}")
    rule = promise.rule or profile.asked.rule
    read = ReuseProfile(f"sha256:{hashlib.sha256(data).hexdigest()}", profile.asked.alpha, rule.value)
    profiled = replace(handover, reuse_share=reuse_share(profile, rule), reuse_profile=read)
    return replace(cascade, handovers=(*cascade.handovers[:number], profiled, *cascade.handovers[number + 1 :]))


def _handover_of(cascade: CascadeVariant, where: str, profile: Profile, digests: Mapping[str, str]) -> int:
    """Return the number of the hand-over between the models that were measured."""
    pairs = list(pairwise(cascade.models))
    known = [(digests[light], digests[heavy]) for light, heavy in pairs]
    light_digest, heavy_digest = profile.of.reference_digest, profile.of.model_digest
    if (light_digest, heavy_digest) in known:
        return known.index((light_digest, heavy_digest))
    for (light, heavy), (first, second) in zip(pairs, known, strict=True):
        if first == light_digest:
            limit = f"must be that of {heavy}, which comes after {light}, as it is registered: {second}"
            raise InvalidArgument.of(f"{where}.of.model_digest", f"{limit}; measured was {heavy_digest[:80]}")
    firsts = ", ".join(f"{light} {digests[light]}" for light, _ in pairs)
    limit = f"must be that of a model which another comes after, as it is registered: {firsts}"
    raise InvalidArgument.of(f"{where}.of.reference_digest", f"{limit}; measured was {light_digest[:80]}")
