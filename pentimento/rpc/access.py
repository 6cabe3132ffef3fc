"""Read the allowed roles and the largest request of an RPC from its contract's options `allowed_roles` and
`max_request_bytes`. Without roles no caller is allowed; without a size `DEFAULT_REQUEST_BYTES` applies. The callers by
certificate are those of `allowed_calls`.
"""

from dataclasses import dataclass, replace

from google.protobuf import descriptor_pb2, descriptor_pool

from pentimento.api.auth.v1 import auth_pb2
from pentimento.domain.errors import PermissionDenied, Unauthenticated
from pentimento.domain.identity import Caller, Role
from pentimento.domain.reasons import Reason
from pentimento.rpc.allowed_calls import callers_of

ROLE_OF = {
    auth_pb2.ROLE_ANYONE: Role.ANYONE,
    auth_pb2.ROLE_USER: Role.USER,
    auth_pb2.ROLE_SERVICE: Role.SERVICE,
    auth_pb2.ROLE_ADMIN: Role.ADMIN,
    auth_pb2.ROLE_TENANT_ADMIN: Role.TENANT_ADMIN,
}
# Reflection shows the shape of the API: any caller with a token may use it.
ANY_TOKEN = frozenset(Role) - {Role.ANYONE}


DEFAULT_REQUEST_BYTES = 64 * 1024


@dataclass(frozen=True)
class Access:
    """Hold the allowed roles, the largest request and the callers of one RPC; `callers` None: any."""

    roles: frozenset[Role]
    max_request_bytes: int = DEFAULT_REQUEST_BYTES
    callers: frozenset[str] | None = None


def declared_access(service: str) -> dict[str, Access]:
    """Return the access by method name, for a service with a loaded contract. KeyError without one."""
    descriptor = descriptor_pool.Default().FindServiceByName(service)
    found = {method.name: access_of(method.GetOptions()) for method in descriptor.methods}
    return {name: replace(one, callers=callers_of(f"/{service}/{name}", one.roles)) for name, one in found.items()}


def access_of(options: descriptor_pb2.MethodOptions) -> Access:
    roles = frozenset(ROLE_OF[role] for role in options.Extensions[auth_pb2.allowed_roles] if role in ROLE_OF)
    return Access(roles, options.Extensions[auth_pb2.max_request_bytes] or DEFAULT_REQUEST_BYTES)


def authorise(caller: Caller | None, allowed: frozenset[Role], method: str) -> Caller:
    """Return the caller. Raises Unauthenticated (a token is needed) or PermissionDenied (its roles do not suffice)."""
    if caller is None:
        raise Unauthenticated(Reason.TOKEN_REQUIRED, 'this call needs metadata "authorization: Bearer <token>"')
    if not caller.roles & allowed:
        needed = ", ".join(sorted(role.value for role in allowed)) or "nobody"
        raise PermissionDenied("ROLE_NOT_ALLOWED", f"{method} is for {needed}", metadata={"allowed_roles": needed})
    return caller
