"""Light first: a picture that the discriminator is confident of stays, any other request goes on to the next pool
(DiffServe, section 3.1) and has that picture to fall back on."""

from pentimento.dataplane.commits import commit_picture, stop_attempts
from pentimento.dataplane.effects import Effect, ReleaseGrant, ResolveRoute, Score
from pentimento.dataplane.events import Scored
from pentimento.dataplane.state import Phase, Request, State, TimerKind


def on_picture(state: State, request: Request, token: int) -> list[Effect]:
    """Ask for the score of a picture, or commit it. A picture of a stage that is not the last is delivered in time
    should nothing better come."""
    effects = stop_attempts(state, request)
    state.enter(request, Phase.SCORING)
    request.picture_token = token
    if state.settings.fall_back:
        at = request.deadline - state.settings.fall_back_margin_s
        state.set_timer(at, TimerKind.DEADLINE, request.request_id)
    return [*effects, Score(request.request_id, token, request.cascade_stage)]


def on_scored(state: State, now: float, event: Scored) -> list[Effect]:
    """Commit the picture, or send the request on to the next stage where the confidence is below the threshold."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.SCORING or request.picture_token != event.fencing_token:
        return []
    if event.confidence is None or not 0.0 <= event.confidence <= 1.0:
        accepted, degraded = state.settings.accept_unscored, "UNSCORED"
    else:
        accepted, degraded = event.confidence > _threshold(state, request), ""
    pool = state.pool(request.pool)
    pool.scored_count += 1
    if accepted:
        return commit_picture(state, request, event.fencing_token, degraded)
    pool.deferred_count += 1
    return _defer(state, request)


def _threshold(state: State, request: Request) -> float:
    planned = state.pool(request.pool).confidence_threshold
    return state.settings.confidence_threshold if planned is None else planned


def _defer(state: State, request: Request) -> list[Effect]:
    """To the next pool, with the same deadline."""
    release = ReleaseGrant(request.request_id, request.picture_token)
    request.fallback_token = request.picture_token if state.settings.fall_back else 0
    request.picture_token = 0
    request.cascade_stage += 1
    request.option = 0
    state.enter(request, Phase.ROUTING)
    pool = request.cascade[request.cascade_stage]
    state.move(request, pool, request.work)
    state.pool(pool).arrived_count += 1
    return [release, ResolveRoute(request.request_id, request.cascade_stage)]
