"""Choose where a candidate starts among the matches of its search, and say why."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pentimento.domain.cache import CacheScope, CandidateStart, LookupCandidate
from pentimento.domain.generation import Donor, FromImage, FromLatent, FromNoise, ObjectReference, Start, noise_form_of
from pentimento.policies.cache_selection import (
    Miss,
    NearestEntry,
    Selection,
    SelectionContext,
    SelectionRules,
    UseImage,
    UseLatent,
    select_start,
)
from pentimento.policies.earned_reuse import TrialRow, trial_start
from pentimento.policies.reuse_rules import NO_PAIR, NO_PROFILE, UNPROFILED, ModelReuse, ReuseTable
from pentimento.stores.vectors import VectorQuery
from services.vectordb_gateway.lookup.search import LookupSearch, Match, Matches, has_image_for, is_own, latents_for


@dataclass(frozen=True)
class RuledCandidate:
    """A candidate, the reuse that its model allows, and the rules for this request. `unseen`: why no image is searched
    although rules may allow it; empty if images are searched."""

    candidate: LookupCandidate
    reuse: ModelReuse
    rules: SelectionRules
    unseen: str = ""

    @property
    def wants_latent(self) -> bool:
        """Return whether a latent is worth searching for."""
        return self.candidate.latents and (bool(self.rules.latents) or self._tries(from_image=False))

    @property
    def wants_image(self) -> bool:
        """Return whether an image is worth searching for."""
        return self._may_take_image and not self.unseen

    @property
    def _may_take_image(self) -> bool:
        return self.candidate.images and (bool(self.rules.images) or self._tries(from_image=True))

    def _tries(self, *, from_image: bool) -> bool:
        return any(tested.from_image is from_image for tested in self.reuse.trials)

    def text_query(self, search: LookupSearch) -> VectorQuery:
        """Return the query by the prompt: for latents, or for whole images where those are the answer."""
        scope = self.candidate.scope
        return search.stored_query(scope) if self.rules.retrieves else search.latent_query(scope)

    async def by_text(self, search: LookupSearch) -> Sequence[Match]:
        """Return what `text_query` finds."""
        scope = self.candidate.scope
        return await (search.stored(scope) if self.rules.retrieves else search.latents(scope))

    def reason(self, selection: Selection) -> str:
        """Return the reason with its profile, for provenance."""
        match selection:
            case UseLatent() | UseImage(found_by_text=True):
                return _with_source(selection.reason, self.reuse.latents)
            case UseImage():
                return _with_source(selection.reason, self.reuse.images)
        if self.rules.latents or self.rules.images:
            unseen = self.unseen if self._may_take_image else ""
            return f"{selection.reason}; {unseen}" if unseen else selection.reason
        lacks_pair = self.reuse.images.source == NO_PAIR and self.reuse.latents.source == NO_PROFILE
        is_of_images = lacks_pair or not self.candidate.latents
        return f"miss: {self.reuse.images.source if is_of_images else self.reuse.latents.source}"


def _with_source(reason: str, table: ReuseTable) -> str:
    return reason if table.source == UNPROFILED else f"{reason} ({table.source})"


def decide(asked: RuledCandidate, matches: Matches, quality: float | None, repeat_key: str) -> CandidateStart:
    """Return the start that saves most; `repeat_key` is the digest of the request's prompt and seed."""
    scope = asked.candidate.scope
    texts = _texts(matches.by_text, scope, repeat_key)
    context = SelectionContext(scope.num_inference_steps, texts, _images(matches.by_image, repeat_key), quality)
    selection = select_start(context, asked.rules)
    return CandidateStart(
        _start(asked, matches, selection),
        asked.reason(selection),
        matches.by_text[0].similarity if matches.by_text else None,
        matches.by_image[0].similarity if matches.by_image else None,
        0 if isinstance(selection, UseImage) else selection.hole_steps,
        _trial(asked, matches, quality, repeat_key) if isinstance(selection, Miss) else None,
    )


def _trial(asked: RuledCandidate, matches: Matches, quality: float | None, repeat_key: str) -> Start | None:
    """Return the start that a cell under test would allow to a request that misses; None if there is none."""
    scope, kinds = asked.candidate.scope, {False: asked.wants_latent, True: asked.wants_image}
    for tested in asked.reuse.trials:
        texts, images = _texts(matches.by_text, scope, repeat_key), _images(matches.by_image, repeat_key)
        context = SelectionContext(scope.num_inference_steps, texts, images, quality)
        found = trial_start(context, asked.rules, tested) if kinds[tested.from_image] else None
        # The request's own entry would give the same image.
        if found is not None and not is_own(_matches_of(tested, matches)[found.entry], repeat_key):
            return _start(asked, matches, found)
    return None


def _matches_of(tested: TrialRow, matches: Matches) -> Sequence[Match]:
    return matches.by_image if tested.from_image else matches.by_text


def _texts(matches: Sequence[Match], scope: CacheScope, repeat_key: str) -> Iterator[NearestEntry]:
    for match in matches:
        steps = tuple(latent.resume_step for latent in latents_for(scope, match.entry))
        yield NearestEntry(match.similarity, steps, has_image_for(scope, match.entry), is_own(match, repeat_key))


def _images(matches: Sequence[Match], repeat_key: str) -> Iterator[NearestEntry]:
    for match in matches:
        # One that started from another image is not made again from noise.
        is_repeat = is_own(match, repeat_key) and not match.entry.ancestor_depth
        yield NearestEntry(match.similarity, has_image=True, is_own=is_repeat)


def _start(asked: RuledCandidate, matches: Matches, selection: Selection) -> Start:
    scope = asked.candidate.scope
    match selection:
        case UseLatent():
            return _from_latent(scope, matches.by_text[selection.entry], selection)
        case UseImage():
            found = matches.by_text if selection.found_by_text else matches.by_image
            reference = asked.reuse.images.reference_model_digest
            return _from_image(scope, found[selection.entry], selection, reference)
    return FromNoise()


def _from_latent(scope: CacheScope, match: Match, selection: UseLatent) -> FromLatent:
    step, again = selection.resume_step, selection.renoising
    latent = next(each for each in latents_for(scope, match.entry) if each.resume_step == step)
    donor = _donor(scope, match, latent.object)
    known = (latent.object, step, scope.num_inference_steps, latent.sigma, donor)
    return FromLatent(*known, again.renoised_steps, again.retaken_steps)


def _from_image(scope: CacheScope, match: Match, selection: UseImage, reference_digest: str) -> Start:
    image = match.entry.image
    if image is None:
        return FromNoise()
    donor = _donor(scope, match, image)
    step, again = selection.start_step, selection.renoising
    known = (image, step, noise_form_of(scope.prediction_type), donor)
    return FromImage(*known, again.renoised_steps, again.retaken_steps, reference_digest)


def _donor(scope: CacheScope, match: Match, served: ObjectReference) -> Donor:
    entry = match.entry
    request_id = entry.request_id_for(scope.tenant)
    return Donor(entry.entry_id, served.digest, match.similarity, entry.ancestor_depth, request_id)
