"""Handle effects that raised: end a request that will get no answer as failed, and free everything it holds."""

from collections.abc import Callable, Mapping

from pentimento.dataplane import effects
from pentimento.dataplane.cascade import on_scored
from pentimento.dataplane.commits import on_commit_failed
from pentimento.dataplane.credits import give_back, give_back_peer
from pentimento.dataplane.effects import DeliverRecorded, Effect, End, ReleaseGrant, StopAttempt
from pentimento.dataplane.endings import deliver_end, end_request, journal_end, stop_request
from pentimento.dataplane.events import CommitFailed, EffectFailed, Scored
from pentimento.dataplane.requests import Phase
from pentimento.dataplane.state import State
from pentimento.domain.reasons import Reason

Handler = Callable[[State, float, EffectFailed], list[Effect]]

_MESSAGE = "a defect of the frontdoor ended this request"
# Retries of journalling an end; after them the client is answered without the journal.
MAX_END_RETRIES = 3


def failure_of(effect: Effect) -> EffectFailed:
    """Return the event that answers an effect that raised."""
    request_id, token = getattr(effect, "request_id", ""), getattr(effect, "fencing_token", 0)
    return EffectFailed(request_id, type(effect).__name__, token)


def on_effect_failed(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """Undo the effect's reservations, and end its request as failed. Effects without a waiting request (cache entries,
    grants, informative messages to a client) change nothing."""
    handler = _HANDLERS.get(event.effect)
    return handler(state, now, event) if handler is not None else []


def _never_accepted(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """End the request in the journal, in case the journal has it: no frontdoor would run it before the next start."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ACCEPTING:
        return []
    return journal_end(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_announced(state: State, now: float, event: EffectFailed) -> list[Effect]:
    request = state.requests.get(event.request_id)
    return [] if request is None else stop_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_routed(state: State, now: float, event: EffectFailed) -> list[Effect]:
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ROUTING:
        return []
    return end_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_journalled(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """End the request: the journal may or may not have the attempt, so nothing can be committed under its token."""
    key = (event.request_id, event.fencing_token)
    if key not in state.unpersisted:
        return []
    del state.unpersisted[key]
    give_back(state, key)
    release: list[Effect] = [ReleaseGrant(*key)]
    request = state.requests.get(event.request_id)
    if request is None or request.attempt_key != key or request.phase is Phase.ENDING:
        return release
    return release + journal_end(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_followed(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """Lose the attempt: it may run, but no event would report its end."""
    key = (event.request_id, event.fencing_token)
    worker = give_back(state, key) if key not in state.unpersisted else None
    if worker is None:
        return []
    stop: list[Effect] = [StopAttempt(*key, worker.worker_id), ReleaseGrant(*key)]
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.RUNNING:
        return stop
    return stop + end_request(state, request, End.FAILED, Reason.EFFECT_FAILED, _MESSAGE)


def _never_paired(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """Let the worker run both halves of the guidance without its peer."""
    give_back_peer(state, (event.request_id, event.fencing_token))
    return []


def _never_scored(state: State, now: float, event: EffectFailed) -> list[Effect]:
    return on_scored(state, now, Scored(event.request_id, event.fencing_token, None))


def _never_committed(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """End the request. If the commit succeeded after all, the end loses in the journal and the journalled image is
    delivered."""
    return on_commit_failed(
        state, now, CommitFailed(event.request_id, event.fencing_token, Reason.EFFECT_FAILED, _MESSAGE)
    )


def _never_ended(state: State, now: float, event: EffectFailed) -> list[Effect]:
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.ENDING or request.ending is None:
        return []
    request.end_failures += 1
    if request.end_failures > MAX_END_RETRIES:
        return deliver_end(state, request, request.ending)
    return [request.ending]


def _never_answered(state: State, now: float, event: EffectFailed) -> list[Effect]:
    """Deliver the journalled result, which the client has not received."""
    return [] if event.request_id in state.requests else [DeliverRecorded(event.request_id)]


_HANDLERS: Mapping[str, Handler] = {
    effects.PersistAccepted.__name__: _never_accepted,
    effects.Announce.__name__: _never_announced,
    effects.ResolveRoute.__name__: _never_routed,
    effects.PersistAttempt.__name__: _never_journalled,
    effects.ReservePair.__name__: _never_paired,
    effects.Execute.__name__: _never_followed,
    effects.Attach.__name__: _never_followed,
    effects.Score.__name__: _never_scored,
    effects.CommitResult.__name__: _never_committed,
    effects.PersistEnd.__name__: _never_ended,
    effects.Reject.__name__: _never_answered,
    effects.Deliver.__name__: _never_answered,
    effects.DeliverEnd.__name__: _never_answered,
}
