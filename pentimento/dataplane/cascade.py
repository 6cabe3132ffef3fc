"""Run the light stage first and defer a request if its image scores below the threshold (DiffServe, section 3.1). The
light image stays the fallback.

An image of a stage without a score is never deferred: the next stage only stands in if the first would be late (ADR
0008).
"""

from pentimento.dataplane.commits import commit_picture, stop_attempts
from pentimento.dataplane.effects import Effect, ReleaseGrant, ResolveRoute, Score
from pentimento.dataplane.events import RequestArrived, Scored
from pentimento.dataplane.pools import Pool
from pentimento.dataplane.requests import Phase, Request
from pentimento.dataplane.state import State, TimerKind
from pentimento.domain.fleet import CONFIDENCE_BINS
from pentimento.domain.foresight import PromptForesight
from pentimento.domain.reasons import Reason
from pentimento.policies.light_stages import leaves_out_light, needs_no_score
from pentimento.policies.plan.entry import IMAGE, NOISE

# Time before the deadline at which an earlier image is committed instead.
FALL_BACK_MARGIN_S = 0.1


def on_picture(state: State, request: Request, token: int) -> list[Effect]:
    """Commit an image, or request its score if a next stage may improve it. The image of a prompt that is surely easy
    needs no score. An image of an earlier stage is delivered at the deadline if no better one arrives."""
    threshold = _threshold(state, request) if request.has_next_stage else None
    if threshold is None:
        return commit_picture(state, request, token, Reason.PREDICTED_LATE if request.stood_in else "")
    if request.cascade_stage == 0 and request.start == NOISE and needs_no_score(request.foreseen, threshold):
        # Plans count it as scored: f(t) covers all prompts.
        _count_score(state.pool(request.pool), _probability(request))
        return commit_picture(state, request, token, "")
    effects = stop_attempts(state, request)
    state.enter(request, Phase.SCORING)
    request.picture_token = token
    if state.settings.fall_back:
        at = request.deadline - FALL_BACK_MARGIN_S
        state.set_timer(at, TimerKind.DEADLINE, request.request_id)
    return [*effects, Score(request.request_id, token, request.cascade_stage)]


def on_scored(state: State, now: float, event: Scored) -> list[Effect]:
    """Commit the image, or send the request to the next stage if the confidence is not above the threshold."""
    request = state.requests.get(event.request_id)
    if request is None or request.phase is not Phase.SCORING or request.picture_token != event.fencing_token:
        return []
    if event.confidence is None or not 0.0 <= event.confidence <= 1.0:
        accepted, degraded = state.settings.accept_unscored, "UNSCORED"
    else:
        threshold = _threshold(state, request)
        accepted, degraded = threshold is None or event.confidence > threshold, ""
    pool = state.pool(request.pool)
    _count_score(pool, None if degraded else event.confidence)
    if accepted:
        return commit_picture(state, request, event.fencing_token, degraded)
    pool.deferred_count += 1
    return [ReleaseGrant(request.request_id, request.picture_token), *_send_on(state, request)]


def leaves_out_stage(state: State, request: Request, price: float) -> bool:
    """Return whether a routed request skips this stage: by its prompt the image would be rejected, or by its `price`
    the stage costs more than it saves (`policies.light_stages`)."""
    if not request.has_next_stage or request.start != NOISE:
        return False
    return leaves_out_light(request.foreseen, state.settings.skip_light_below, _threshold(state, request), price)


def leave_out_stage(state: State, request: Request) -> list[Effect]:
    """Send the request to the next stage without running this one. Plans count it as scored and deferred, since f(t)
    gives the next pool's share of all requests."""
    pool = state.pool(request.pool)
    _count_score(pool, _probability(request))
    pool.deferred_count += 1
    return _send_on(state, request)


def stand_in_pool(state: State, request: Request | RequestArrived) -> str:
    """Return the pool of the next stage if it stands in for the request's stage; "" if it does not, or has no
    credits."""
    stage, start = (request.cascade_stage, request.start) if isinstance(request, Request) else (0, NOISE)
    thresholds = state.thresholds.get(request.cascade_name)
    if thresholds is None or stage + 1 >= len(request.cascade):
        return ""
    following = request.cascade[stage + 1]
    pool = state.pools.get(following)
    is_scored = (request.cascade[stage], start) in thresholds
    return following if not is_scored and pool is not None and pool.credit_count else ""


def stand_in(state: State, request: Request) -> list[Effect]:
    """Send the request to the stage that stands in for its current one."""
    request.stood_in = True
    return _skip_to(state, request, request.cascade_stage + 1)


def _staffed_stage(state: State, request: Request) -> int:
    """Return the number of the first later stage with a pool that has workers in the plan; 0 if there is none."""
    later = range(request.cascade_stage + 1, len(request.cascade))
    return next((stage for stage in later if request.cascade[stage] in state.index.staffed), 0)


def _pass_on(state: State, request: Request, stage: int) -> list[Effect]:
    """Send the request to that later stage, since its own has no workers. The image of an earlier stage remains as a
    fallback."""
    thresholds = state.thresholds.get(request.cascade_name)
    if thresholds is not None and (request.cascade[request.cascade_stage], request.start) not in thresholds:
        # The stage that stands in is no better than the planned one.
        request.stood_in = True
    fallback_token = request.fallback_token
    effects = _skip_to(state, request, stage)
    request.fallback_token = fallback_token
    return effects


def reroute(state: State, request: Request) -> list[Effect]:
    """Route the request again from its stage's start."""
    state.enter(request, Phase.ROUTING)
    return [ResolveRoute(request.request_id, request.cascade_stage)]


def is_deserted(state: State, pool: str) -> bool:
    """Return whether the pool has no workers, both in the plan and by their reports."""
    return pool in state.index.unstaffed and not state.pool(pool).workers


def go_on(state: State, request: Request) -> list[Effect]:
    """Send on a request that waits in a pool without workers: to a later stage of its cascade that has workers, else to
    the stages of the current plan if a plan chose its pool. Do nothing if neither exists, or if the request has a
    fallback image: the same model need not run for it again."""
    if stage := _staffed_stage(state, request):
        return _pass_on(state, request, stage)
    if not request.planned or request.fallback_token or request.asked_anew == state.index.entered:
        return []
    request.asked_anew = state.index.entered
    request.cascade_stage, request.option = max(len(request.cascade), 1), 0
    state.enter(request, Phase.ROUTING)
    return [ResolveRoute(request.request_id, request.cascade_stage, anew=True)]


def _skip_to(state: State, request: Request, stage: int) -> list[Effect]:
    """Send the request to a later stage without an image of this one. The route then sets its work."""
    state.pool(request.pool).stood_in_count += 1
    request.cascade_stage = stage - 1
    effects = _send_on(state, request)
    state.move(request, request.pool, 0.0)
    return effects


def _probability(request: Request) -> float | None:
    return None if request.foreseen is None else request.foreseen.probability


def _count_score(pool: Pool, confidence: float | None) -> None:
    pool.scored_count += 1
    if confidence is not None:
        pool.confidences[min(int(confidence * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)] += 1


def own_threshold(state: State, foreseen: PromptForesight | None) -> float:
    """Return the operator's confidence threshold, or else the recommendation of the request's discriminator."""
    if state.settings.confidence_threshold is not None:
        return state.settings.confidence_threshold
    return state.recommended_threshold if foreseen is None else foreseen.threshold


def _threshold(state: State, request: Request) -> float | None:
    """Return the plan's threshold for images from the request's start; None if they need no score. Without a plan that
    routes requests it is the operator's or the discriminator's threshold, except for images refined from another image.
    The selector profile of such images promises their quality against the heavy model, and discriminators never saw
    any."""
    if request.cascade_name in state.thresholds:
        stage = request.cascade[request.cascade_stage]
        return state.thresholds[request.cascade_name].get((stage, request.start))
    if state.index.routes_requests:
        return None
    return own_threshold(state, request.foreseen) if request.start != IMAGE else None


def _send_on(state: State, request: Request) -> list[Effect]:
    """Send the request to the next pool with the same deadline."""
    request.fallback_token = request.picture_token if state.settings.fall_back else 0
    request.picture_token = 0
    request.cascade_stage += 1
    request.option = 0
    state.enter(request, Phase.ROUTING)
    pool = request.cascade[request.cascade_stage]
    state.move(request, pool, request.work)
    state.pool(pool).arrived_count += 1
    return [ResolveRoute(request.request_id, request.cascade_stage)]
