"""Callers and their roles."""

from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """Mirrors pentimento.api.auth.v1.Role, which says of every RPC who may call it."""

    ANYONE = "anyone"
    USER = "user"
    SERVICE = "service"
    ADMIN = "admin"
    TENANT_ADMIN = "tenant-admin"


@dataclass(frozen=True)
class Caller:
    """Tenant and roles of a token. Without a token file every caller is `tenant="default"` with every role."""

    tenant: str
    roles: frozenset[Role]


DEFAULT_TENANT = "default"
OPEN_CALLER = Caller(DEFAULT_TENANT, frozenset(Role))
