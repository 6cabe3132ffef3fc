"""What the gateway answers. Mirrors pentimento.api.vectordb.v1."""

from dataclasses import dataclass

from pentimento.domain.generation import Start


@dataclass(frozen=True)
class LookupAnswer:
    """`nearest_similarity` is None when the search was skipped or found nothing."""

    start: Start
    reason: str
    nearest_similarity: float | None = None
    search_skipped: bool = False
