"""Random values of the classes that messages carry, with every field drawn."""

from enum import Enum
from functools import cache
from typing import Any, get_origin

from hypothesis import strategies as st

from pentimento.domain.generation import Attempt
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.requests import RequestState
from pentimento.domain.shapes import FieldShape, fields_of, item_of, members_of, without_none
from pentimento.domain.tenants import TenantQuota

# As wide as the narrowest field of messages.
INTEGERS = st.integers(0, 2**31 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: INTEGERS,
    float: st.floats(allow_nan=False),
    str: TEXTS,
    bytes: st.binary(max_size=8),
}
# Seconds of the class that the message has in milliseconds.
MOMENTS = st.integers(0, 2**40).map(lambda millis: millis / 1000)


@cache
def values(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a class or of a union of classes."""
    if kind in PLAIN:
        return PLAIN[kind]
    if kind in SPECIAL:
        return SPECIAL[kind]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(kind)
    if members := members_of(kind):
        return st.one_of([values(member) for member in members])
    if get_origin(kind) is tuple:
        return st.tuples(TEXTS, PLAIN[bytes])
    return st.builds(kind, **{field.name: _of_field(field) for field in fields_of(kind)})


def _of_field(field: FieldShape) -> st.SearchStrategy[Any]:
    container, kind = item_of(without_none(field.hint))
    if container is not None:
        found = st.lists(values(kind), max_size=2).map(container)
    elif field.name.endswith("_at"):
        found = MOMENTS
    else:
        found = (
            st.dictionaries(TEXTS, INTEGERS, max_size=2) if get_origin(kind) and not members_of(kind) else values(kind)
        )
    return st.none() | found if field.is_optional else found


def _quota(rate: float | None, burst: int, count: int | None) -> TenantQuota:
    return TenantQuota(rate, burst if rate is not None else None, count, 1.0, None, 2.5, ("heavy",))


SPECIAL: dict[Any, st.SearchStrategy[Any]] = {
    TenantQuota: st.builds(_quota, st.none() | st.floats(0.001, 1e6), st.integers(1, 1_000), st.none() | st.just(0)),
}
SPECIAL[Attempt] = st.builds(Attempt, st.text("abc", min_size=1), INTEGERS, INTEGERS, TEXTS, INTEGERS, TEXTS)
SPECIAL[RequestStatus] = st.builds(RequestStatus, request_id=TEXTS, state=st.sampled_from(RequestState))
