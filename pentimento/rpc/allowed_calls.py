"""List the methods that each service calls, as docs/structure.md draws them.

The table has two readers: `callers.CallerRules`, for certificates of mutual TLS, and the chart's NetworkPolicies, for
which `make reference` writes the services without their methods to `deploy/helm/pentimento/files/calls.json`.
"""

from collections.abc import Mapping

from pentimento.domain.identity import Role

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
        "embedder": {f"{_API}.embedder.v1.EmbedderService": ("EmbedText", "EmbedImage")},
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
            f"{_API}.discriminator.v1.DiscriminatorService": ("Score", "Foresee"),
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
