"""Lookups and their answers. Mirrors pentimento.api.vectordb.v1."""

from dataclasses import dataclass

from pentimento.domain.cache import CacheScope
from pentimento.domain.generation import Start


@dataclass(frozen=True)
class LookupCandidate:
    """A model that may serve the request, and the kinds of start that it would take."""

    scope: CacheScope
    latents: bool = True
    images: bool = True


@dataclass(frozen=True)
class Neighbour:
    """An entry near a prompt and compatible with its request, also where it is not near enough.

    `similarity` (cosine) is between the prompts, or between prompt and image (`by_picture`). `resume_steps`: steps
    where the entry has a latent for the request. `request_id` as in Donor.
    """

    entry_id: str
    similarity: float
    by_picture: bool
    resume_steps: tuple[int, ...] = ()
    ancestor_depth: int = 0
    created_at_ms: int = 0
    request_id: str = ""


@dataclass(frozen=True)
class CandidateStart:
    """Where one candidate would start, and why. The similarities (cosine) are those of the nearest compatible entries,
    also where they were not near enough; None where nothing was searched or found."""

    start: Start
    reason: str
    text_similarity: float | None = None
    image_similarity: float | None = None


@dataclass(frozen=True)
class LookupAnswer:
    """A start for each candidate, in their order. `search_skipped`: the index was not asked, the reasons say why."""

    starts: tuple[CandidateStart, ...]
    search_skipped: bool = False
