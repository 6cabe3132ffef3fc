"""Errors of the catalogue as numbers of google.rpc.Code, for messages that tell of an error beside others."""

from pentimento.domain import errors
from pentimento.domain.errors import PentimentoError

_NUMBERS: dict[type[PentimentoError], int] = {
    errors.Cancelled: 1,
    errors.InvalidArgument: 3,
    errors.DeadlineExceeded: 4,
    errors.NotFound: 5,
    errors.PermissionDenied: 7,
    errors.ResourceExhausted: 8,
    errors.FailedPrecondition: 9,
    errors.Aborted: 10,
    errors.Internal: 13,
    errors.Unavailable: 14,
    errors.Unauthenticated: 16,
}
_CLASSES = {number: kind for kind, number in _NUMBERS.items()}


def code_number_of(error: PentimentoError) -> int:
    """Return the number of the nearest class of the catalogue; that of Internal for one of none."""
    return next((_NUMBERS[kind] for kind in type(error).__mro__ if kind in _NUMBERS), _NUMBERS[errors.Internal])


def error_class_of(number: int) -> type[PentimentoError]:
    """Return the class of that number; Internal for a number that stands for none."""
    return _CLASSES.get(number, errors.Internal)
