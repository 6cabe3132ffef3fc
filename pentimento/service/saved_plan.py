"""The plan that was saved last, for whoever starts: a controller that leads, a frontdoor that has not heard of any."""

import logging

from pentimento.api.controller.v1 import controller_service_pb2 as controller_pb
from pentimento.domain.epochs import latest_believable
from pentimento.domain.errors import InvalidArgument
from pentimento.domain.fleet import Plan
from pentimento.wire.codec import from_bytes

logger = logging.getLogger(__name__)


def believable_plan(saved: bytes | None, wall_s: float) -> Plan | None:
    """Return the plan; None where none was saved, and, told to the log, where it is not understood (a newer version's,
    perhaps) or of an epoch that no controller can have: the next one takes its place."""
    try:
        plan = from_bytes(saved, Plan, controller_pb.Plan) if saved else None
    except InvalidArgument as error:
        logger.error("the saved plan cannot be read", extra={"reason": error.reason, "error": error.message})
        return None
    return plan if plan is None or is_believable(plan, wall_s) else None


def is_believable(plan: Plan, wall_s: float) -> bool:
    """Return whether a controller can have the plan's epoch; the log is told where none can."""
    epoch = plan.version.leader_epoch
    believable = epoch <= latest_believable(wall_s)
    if not believable:
        logger.error("a plan with an impossible epoch is ignored", extra={"epoch": epoch})
    return believable
