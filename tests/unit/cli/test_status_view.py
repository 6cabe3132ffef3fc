"""What `pentimento status` makes of the answers."""

from pentimento.cli.status_view import SuiteStatus
from pentimento.domain.errors import Unavailable


def test_a_suite_without_a_cache_misses_none() -> None:
    status = SuiteStatus.of(Unavailable("GONE", "no"), Unavailable("GONE", "no"), None)

    assert set(status.unanswered) == {"controller", "frontdoor"}
    assert status.cache is None
