"""Admission, queues, dispatch, attempts and endings, pure: `Dataplane.on_event(now, event) -> effects`.

    arrives -> PersistAccepted -> (AcceptPersisted) -> Announce, ResolveRoute -> (RouteResolved) -> queue of its lane
    free credit -> PersistAttempt -> (AttemptPersisted) -> Execute -> (AttemptFinished) -> CommitResult
    (ResultCommitted) -> Deliver, CommitCacheEntries

Names in parentheses are events. The frontdoor interprets the effects live; whatever else interprets them runs the same
decisions.
"""

from pentimento.dataplane.machine import Dataplane
from pentimento.dataplane.settings import DataplaneSettings

__all__ = ["Dataplane", "DataplaneSettings"]
