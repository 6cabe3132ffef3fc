"""An HTTP edge in this process, before a frontdoor that is reached over its real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pentimento.rpc import RpcChannelSettings, RpcServerSettings
from services.edge.process import EdgeProcess
from services.edge.settings import EdgeSettings, HttpSettings
from services.edge.wiring import wire


@asynccontextmanager
async def running_edge(
    folder: Path,
    frontdoor_address: str,
    *,
    controller_address: str = "",
    gateway_address: str = "",
    files_url: str = "",
    signing_key_file: Path | None = None,
    service_token_file: Path | None = None,
    tls: dict[str, Any] | None = None,
    frontdoor_tls: dict[str, Any] | None = None,
    max_callers: int = 256,
    model_aliases: tuple[str, ...] = (),
    **http: Any,
) -> AsyncIterator[EdgeProcess]:
    """Listen on a free port of this machine; `http` are settings of the listener, `tls` those of what it shows and asks
    for, `frontdoor_tls` those by which a frontdoor at host:port is called."""
    settings = EdgeSettings(
        RpcServerSettings(listen=(f"unix:{folder / 'edge'}",), drain_timeout_s=5.0, **(tls or {})),
        RpcChannelSettings(service_token_file=service_token_file, **(frontdoor_tls or {})),
        HttpSettings(http_listen="127.0.0.1:0", **{"drain_delay_s": 0.0, **http}),
        frontdoor_address=frontdoor_address,
        files_url=files_url,
        signing_key_file=signing_key_file,
        controller_address=controller_address,
        gateway_address=gateway_address,
        max_callers=max_callers,
        model_aliases=model_aliases,
    )
    edge = wire(settings)
    try:
        await edge.prepare()
        yield edge
    finally:
        await edge.close()
