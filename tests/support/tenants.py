"""Administer tenants by a servicer in this process."""

from collections.abc import Awaitable, Callable
from typing import Any

from pentimento.clients.frontdoor import TenantsClient
from services.frontdoor.tenants.administration import TenantServicer


class _Direct:
    """Call a servicer in place of a stub: its errors arrive as it raises them."""

    def __init__(self, servicer: TenantServicer) -> None:
        self._servicer = servicer

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self._servicer, method)
        return lambda request, timeout: call(request, None)


def administered_by(servicer: TenantServicer) -> TenantsClient:
    client = TenantsClient.__new__(TenantsClient)
    client._stub, client._timeout_s = _Direct(servicer), 0.0  # type: ignore[assignment]
    return client
