"""Draw random values of the classes that messages carry, every field included. Hypothesis takes minutes for all
classes."""

from enum import Enum
from random import Random
from typing import Any, get_origin

from pentimento.domain.embedding import Embedding
from pentimento.domain.generation import Attempt
from pentimento.domain.image_request import RequestStatus
from pentimento.domain.jobs import RequestState
from pentimento.domain.shapes import FieldShape, fields_of, item_of, members_of, without_none
from pentimento.domain.tenants import TenantQuota

LETTERS = "aZ0 ./é漢😀\n\0"


def random_value(kind: Any, random: Random) -> Any:
    """Return a value of a class or of a union of classes."""
    if members := members_of(kind):
        kind = random.choice(members)
    if kind in SPECIAL:
        return SPECIAL[kind](random)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return random.choice(list(kind))
    if get_origin(kind) is tuple:
        return random.randrange(2**31), random.random()
    return kind(**{field.name: _of_field(field, random) for field in fields_of(kind)})


def _of_field(field: FieldShape, random: Random) -> Any:
    if field.is_optional and random.random() < 0.3:
        return None
    container, kind = item_of(without_none(field.hint))
    if container is not None:
        return container(random_value(kind, random) for _ in range(random.randrange(3)))
    if field.name.endswith("_at") and kind is float:
        return random.randrange(2**40) / 1000
    if field.name == "tenant_id":
        return ""
    if get_origin(kind) is not None and not members_of(kind):
        return {_text(random): random.randrange(2**31) for _ in range(2)}
    return random_value(kind, random)


def _text(random: Random) -> str:
    return "".join(random.choices(LETTERS, k=random.randrange(6)))


def _embedding(random: Random) -> Embedding:
    count = random.randrange(1, 4)
    return Embedding(random.randbytes(4 * count), count, _text(random))


def _attempt(random: Random) -> Attempt:
    number = random.randrange(2**31)
    return Attempt(f"r{number}", number, random.randrange(2**63), _text(random), number, _text(random))


def _quota(random: Random) -> TenantQuota:
    rate = random.choice([None, 2.5])
    burst = None if rate is None else random.choice([None, 3])
    return TenantQuota(rate, burst, random.choice([None, 0]), 1e9, random.choice([None, 7]), 2.5, ("heavy",))


def _status(random: Random) -> RequestStatus:
    return RequestStatus(_text(random), random.choice(list(RequestState)), None, _text(random), _text(random))


# As wide as the narrowest field of messages.
SPECIAL: dict[Any, Any] = {
    bool: lambda random: random.random() < 0.5,
    int: lambda random: random.choice([0, 1, 2**31 - 1, random.randrange(2**31)]),
    float: lambda random: random.choice([0.0, -1.5, float("inf"), random.random()]),
    str: _text,
    bytes: lambda random: random.randbytes(random.randrange(4)),
    Attempt: _attempt,
    Embedding: _embedding,
    TenantQuota: _quota,
    RequestStatus: _status,
}
