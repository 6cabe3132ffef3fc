"""Read the allowed roles and the largest request of an RPC from its contract's options `allowed_roles` and
`max_request_bytes`. Without roles no caller is allowed; without a size `DEFAULT_REQUEST_BYTES` applies. The table of
the methods that each service calls, as docs/structure.md draws them, has two readers: `callers.CallerRules`, for
certificates of mutual TLS, and the chart's NetworkPolicies: `make reference` writes the services without their methods
to `deploy/helm/pentimento/files/calls.json`.

The logger `pentimento.audit` writes who changed what: a line for each call that only administrators may make, and for
each call that the rules of callers reject. It is the only log that names tenants. Keys and uploaded bytes are not in
it: a key exists in answers only.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import Message

from pentimento.api.auth.v1 import auth_pb2
from pentimento.domain.errors import PermissionDenied, Unauthenticated
from pentimento.domain.reasons import Reason
from pentimento.domain.tenants import Caller, Role

audit_log = logging.getLogger("pentimento.audit")


Methods = Mapping[str, tuple[str, ...]]


def _named(names: str) -> tuple[str, ...]:
    return tuple(names.split())


_API = "pentimento.api"
_CONTROLLER = f"{_API}.controller.v1.ControllerService"
_REPLICA = ("Register", "Report", "Deregister", "WatchPlan")
_FLEET: Methods = {_CONTROLLER: _REPLICA}

# Caller, called service, and the methods by "package.Service".
ALLOWED_CALLS: Mapping[str, Mapping[str, Methods]] = {
    "edge": {
        "frontdoor": {
            f"{_API}.image.v1.ImageService": _named(
                "Generate Replay Submit Attach ListRequests GetResultUrl GetWebhookKey "
                "Pin Unpin Cancel GetRequest Explain ListModels FindCell"
            ),
            f"{_API}.frontdoor.v1.FrontdoorService": ("GetStatus",),
        },
        "controller": {_CONTROLLER: ("GetFleet",)},
        "vectordb-gateway": {f"{_API}.vectordb.v1.VectordbGatewayService": ("GetStatistics",)},
    },
    "frontdoor": {
        # A tenant that moved is known to its former cell.
        "frontdoor": {f"{_API}.frontdoor.v1.FrontdoorService": ("FindKey",)},
        "controller": _FLEET,
        "embedder": {f"{_API}.embedder.v1.EmbedderService": ("EmbedText", "EmbedImage", "GetInfo")},
        "vectordb-gateway": {
            f"{_API}.vectordb.v1.VectordbGatewayService": _named(
                "Lookup ListNeighbours Reserve Commit Release ReportBadObject "
                "ReportStart PinObject UnpinObjects ForgetTenant ReportQuality GetReuseQuality"
            )
        },
        "unet-worker": {
            f"{_API}.worker.v1.UnetWorkerService": _named("WatchCredits Execute Attach CancelAttempt ThinAttempt")
        },
        "discriminator": {
            f"{_API}.discriminator.v1.DiscriminatorService": ("Score", "Foresee", "GetStatus"),
            f"{_API}.safety.v1.SafetyService": ("Check",),
        },
    },
    "vectordb-gateway": {"controller": _FLEET},
    "embedder": {"controller": _FLEET},
    "discriminator": {"controller": _FLEET},
    "controlnet-svc": {"controller": _FLEET},
    "unet-worker": {
        "controller": {
            _CONTROLLER: (*_REPLICA, "FindComponents"),
            f"{_API}.models.v1.ModelRepositoryService": ("GetModel",),
        },
        "controlnet-svc": {f"{_API}.controlnet.v1.ControlNetService": ("WatchCredits", "StreamResiduals", "GetStatus")},
        "unet-worker": {
            f"{_API}.components.v1.ComponentService": ("FetchComponent",),
            f"{_API}.worker.v1.UnetWorkerService": ("PredictHalf",),
        },
    },
    "controller": {},
}

# Callers outside the suite: they call what the contract gives to their roles.
OUTSIDE: Mapping[str, frozenset[Role]] = {
    "client": frozenset({Role.USER}),
    "administrator": frozenset({Role.ADMIN, Role.TENANT_ADMIN}),
}
CALLERS = frozenset({*ALLOWED_CALLS, *OUTSIDE})


def callers_of(path: str, roles: frozenset[Role]) -> frozenset[str]:
    """Return who may call "/package.Service/Method", by the table or by the roles of its contract."""
    name, _, method = path.removeprefix("/").rpartition("/")
    services = {
        caller
        for caller, called in ALLOWED_CALLS.items()
        if any(method in methods.get(name, ()) for methods in called.values())
    }
    return frozenset(services | {caller for caller, own in OUTSIDE.items() if own & roles})


def called_services() -> dict[str, list[str]]:
    """Return the services that each service calls."""
    return {caller: sorted(called) for caller, called in ALLOWED_CALLS.items()}


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


ADMINISTRATORS = frozenset({Role.ADMIN, Role.TENANT_ADMIN})
READS = ("Get", "List", "Watch")
SUBJECT_CHARACTERS = 200


def is_audited(path: str, roles: frozenset[Role]) -> bool:
    """Return whether the calls of "/package.Service/Method" are logged: those of administrators that change state."""
    return roles <= ADMINISTRATORS and not path.rpartition("/")[2].startswith(READS)


def subject_of(request: object) -> str:
    """Return the texts of a request and of the messages in it as "field=text"; "" for a stream of requests."""
    return " ".join(_texts(request))[:SUBJECT_CHARACTERS] if isinstance(request, Message) else ""


def _texts(message: Message) -> Iterator[str]:
    for field, value in message.ListFields():
        if isinstance(value, str):
            yield f"{field.name}={value}"
        elif isinstance(value, Message):
            yield from _texts(value)


def log_call(path: str, caller: Caller | None, peer: str, subject: str, code: str) -> None:
    """Log a call that has ended; `caller` None: its token is unknown."""
    tenant = caller.tenant if caller is not None else ""
    fields = {"method": path, "tenant": tenant, "peer": peer, "subject": subject, "code": code}
    audit_log.info("administration", extra=fields)
