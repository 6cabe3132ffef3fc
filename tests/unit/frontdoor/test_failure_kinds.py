from pentimento.dataplane.events import FailureKind
from pentimento.domain import errors
from services.frontdoor.workers.attempts import failure_kind


def test_failure_kind_of_workers_error_decides_next_attempt() -> None:
    for error, kind in (
        (errors.Unavailable("UNAVAILABLE", ""), FailureKind.WORKER_LOST),
        (errors.Unavailable("DRAINING", ""), FailureKind.NO_CREDIT),
        (errors.Unavailable("WORKER_STOPPED", ""), FailureKind.NO_CREDIT),
        (errors.Unavailable("INPUT_UNAVAILABLE", ""), FailureKind.FATAL),
        (errors.Unavailable("CONTROLNET_LOST", ""), FailureKind.FATAL),
        (errors.ResourceExhausted("NO_CREDIT", ""), FailureKind.NO_CREDIT),
        (errors.ResourceExhausted("CONTROLNET_FULL", ""), FailureKind.NO_CREDIT),
        (errors.ResourceExhausted("DEVICE_OUT_OF_MEMORY", ""), FailureKind.WORKER_LOST),
        (errors.ResourceExhausted("MESSAGE_TOO_LARGE", ""), FailureKind.FATAL),
        (errors.FailedPrecondition("MODEL_DIGEST_MISMATCH", ""), FailureKind.NOT_HELD),
        (errors.FailedPrecondition("BAD_LORA", ""), FailureKind.FATAL),
        (errors.FailedPrecondition("LORA_MISMATCH", ""), FailureKind.FATAL),
        (errors.Aborted("FENCED_OFF", ""), FailureKind.NO_CREDIT),
        (errors.NotFound("ATTEMPT_GONE", ""), FailureKind.GONE),
        (errors.NotFound("UNKNOWN_LORA", ""), FailureKind.FATAL),
        (errors.DeadlineExceeded("DEADLINE_EXCEEDED", ""), FailureKind.DEADLINE),
        (errors.Cancelled("CANCELLED", ""), FailureKind.STOPPED),
        (errors.InvalidArgument("INVALID_FIELD", ""), FailureKind.FATAL),
        (errors.Internal("NAN_IN_LATENT", ""), FailureKind.FATAL),
    ):
        assert failure_kind(error) is kind, error.reason
