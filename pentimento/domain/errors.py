"""Everything that can go wrong and that a caller may act on.

    PentimentoError
    ├── InvalidArgument       a field is outside its limits; retrying the same call cannot help
    ├── NotFound              no such model, request, object (or it is another tenant's)
    ├── Unauthenticated       no token, or an unknown one
    ├── PermissionDenied      the role may not call this
    ├── ResourceExhausted     a queue, quota or store is full; `retry_after_ms` says when to come back
    ├── FailedPrecondition    the state forbids it (idempotency key with another body, another model digest)
    ├── Aborted               fenced off: a newer attempt or epoch owns the request
    ├── DeadlineExceeded      the deadline passed, or surely will
    ├── Cancelled             a caller asked for it to stop
    ├── Unavailable           a part is down; the same call may work later
    └── Internal              a defect of the suite

`pentimento.rpc` turns each into one gRPC status with google.rpc details and back.
"""

from dataclasses import dataclass
from typing import ClassVar

from pentimento.domain.safety import SafetyVerdict


@dataclass(frozen=True)
class FieldViolation:
    """One wrong field: its path as the caller wrote it, the problem, and the limit that it broke."""

    field: str
    description: str


class PentimentoError(Exception):
    """Base of all. `reason` is a stable UPPER_SNAKE word of the catalogue, the message a sentence for people. `code` is
    the number of google.rpc.Code."""

    code: ClassVar[int] = 13

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        retry_after_ms: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.violations = violations
        self.retry_after_ms = retry_after_ms
        self.metadata = dict(metadata or {})


class InvalidArgument(PentimentoError):
    code = 3

    @classmethod
    def of(cls, field: str, description: str) -> "InvalidArgument":
        """The common case: one field; `description` states the limit ("must be between 1 and 1000, got 0")."""
        return cls("INVALID_FIELD", f"{field}: {description}", violations=(FieldViolation(field, description),))


class UnsafeContent(InvalidArgument):
    """The operator's classifier calls the prompt or the image unsafe."""

    def __init__(self, reason: str, message: str, verdict: SafetyVerdict) -> None:
        super().__init__(reason, message)
        self.verdict = verdict


class NotFound(PentimentoError):
    code = 5

    @classmethod
    def of(cls, reason: str, field: str, description: str) -> "NotFound":
        """Return the error of a field that names something unknown."""
        return cls(reason, f"{field}: {description}", violations=(FieldViolation(field, description),))


class Unauthenticated(PentimentoError):
    code = 16


class PermissionDenied(PentimentoError):
    code = 7


class ResourceExhausted(PentimentoError):
    code = 8


class FailedPrecondition(PentimentoError):
    code = 9


class Aborted(PentimentoError):
    code = 10


# Message of a request that ran out of time.
DEADLINE_PASSED = (
    "the deadline passed before the image was done: `deadline_ms` of the request, and where it names none "
    "--default-deadline-s of the frontdoor"
)


class DeadlineExceeded(PentimentoError):
    code = 4


class Cancelled(PentimentoError):
    code = 1


class Unavailable(PentimentoError):
    code = 14


class Internal(PentimentoError):
    code = 13


def class_of_code(code: int) -> type[PentimentoError]:
    """Return the error class of a google.rpc.Code, Internal for a code that has none."""
    return next((kind for kind in PentimentoError.__subclasses__() if kind.code == code), Internal)
