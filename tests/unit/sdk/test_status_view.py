"""What `pentimento status` makes of the answers."""

from pentimento.domain.errors import Unavailable
from pentimento.sdk.command.status_view import SuiteStatus


def test_a_suite_without_a_cache_misses_none() -> None:
    status = SuiteStatus.of(Unavailable("GONE", "no"), Unavailable("GONE", "no"), None)

    assert set(status.unanswered) == {"controller", "frontdoor"}
    assert status.cache is None
