"""Decide admission, queueing, dispatch, attempts and endings as pure functions: `Dataplane.on_event(now, event)`.

    arrives -> PersistAccepted -> (AcceptPersisted) -> Announce, ResolveRoute -> (RouteResolved) -> queue of its lane
    free credit -> PersistAttempt -> (AttemptPersisted) -> Execute -> (AttemptFinished) -> CommitResult
    (ResultCommitted) -> Deliver, CommitCacheEntries

Names in parentheses are events, the other names effects. The frontdoor performs the effects live; any other performer
runs the same decisions.
"""

from pentimento.dataplane.machine import Dataplane
from pentimento.dataplane.settings import DataplaneSettings

__all__ = ["Dataplane", "DataplaneSettings"]
