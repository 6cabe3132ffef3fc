"""Which address of several a webhook goes to: none, where one of them may not be called."""

import asyncio
import socket
import ssl
from typing import Any

import pytest

from services.frontdoor.webhooks.calling import WebhookCaller, WebhookFailed, webhook_rules

PUBLIC, INSIDE = "93.184.216.34", "10.0.0.1"


@pytest.mark.parametrize("addresses", [(PUBLIC, INSIDE), (INSIDE, PUBLIC), (INSIDE,), ()])
async def test_one_address_inside_spoils_all_that_a_name_stands_for(
    addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def look_up(host: str, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    async def connect(host: str, port: int, **_: object) -> Any:
        called.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    rules = webhook_rules(("hooks.example.com",), (), False)
    caller = WebhookCaller(rules, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 5.0)

    with pytest.raises(WebhookFailed, match="an address that may not be called"):
        await caller.post("https://hooks.example.com/", {}, b"{}")

    assert called == []
