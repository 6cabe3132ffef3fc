"""Accept addresses of webhooks by their text and by the addresses of their name."""

import asyncio
import socket
import ssl
from typing import Any

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from services.frontdoor.webhooks.calling import WebhookCaller, WebhookFailed, WebhookRules, WebhookTarget, webhook_rules

RULES = webhook_rules(("hooks.example.com", "*.example.org", "127.0.0.1:8443"))


def test_target_of_allowed_host_is_taken_apart() -> None:
    for url, host, port, path, authority in (
        ("https://hooks.example.com", "hooks.example.com", 443, "/", "hooks.example.com"),
        ("https://hooks.example.com:443/a/b?c=%20d", "hooks.example.com", 443, "/a/b?c=%20d", "hooks.example.com"),
        ("https://a.b.example.org/x", "a.b.example.org", 443, "/x", "a.b.example.org"),
        ("https://127.0.0.1:8443/", "127.0.0.1", 8443, "/", "127.0.0.1:8443"),
    ):
        target = RULES.target(url)
        assert (target, target.authority) == (WebhookTarget("https", host, port, path), authority)


OTHER_HOSTS = """https://evil.example.net/ https://hooks.example.com.evil.net/ https://xhooks.example.com/
https://example.org/ https://evilexample.org/ https://hooks.example.com:8443/ https://127.0.0.1/ https://127.0.0.1:84/
https://2130706433:8443/ https://0x7f.0.0.1:8443/"""
NO_ADDRESSES = (
    "",
    "hooks.example.com",
    "http://hooks.example.com/",
    "HTTPS://hooks.example.com/",
    "ftp://hooks.example.com/",
    "https://user@hooks.example.com/",
    "https://evil.example.net\\@hooks.example.com/",
    "https://hooks.example.com#@evil.example.net/",
    "https://hooks.example.com/#fragment",
    "https://hooks.example.com/a b",
    "https://hooks.example.com/\r\nX-Header: 1",
    "https://hooks.example.com\n/",
    "https://hooks.example.com/é",
    "https://hooks.example.com:0/",
    "https://hooks.example.com:65536/",
    "https://hooks.example.com:/",
    "https://Hooks.example.com/",
    "https://hooks.example.com./",
    "https://[::1]:8443/",
    "https://hooks..example.com/",
    "https://hooks.example.com/" + "a" * 2048,
)


def test_target_of_other_hosts_and_forms_is_refused() -> None:
    plain = webhook_rules(("http://hooks.example.com", "b.example.com"))
    refused = [(RULES, url, "WEBHOOK_REFUSED") for url in OTHER_HOSTS.split()]
    refused += [
        (WebhookRules(), "https://hooks.example.com/", "WEBHOOKS_OFF"),
        (plain, "http://hooks.example.com:443/", "WEBHOOK_REFUSED"),
        (plain, "https://hooks.example.com/", "WEBHOOK_REFUSED"),
        (plain, "http://b.example.com/", "WEBHOOK_REFUSED"),
    ]
    for rules, url, reason in refused:
        with pytest.raises(FailedPrecondition) as caught:
            rules.target(url)
        assert caught.value.reason == reason, url
    for url in NO_ADDRESSES:
        with pytest.raises(InvalidArgument, match=r"webhook\.url"):
            RULES.target(url)
    assert plain.target("http://hooks.example.com/").port == 80


PUBLIC_ADDRESSES = "93.184.216.34 2606:2800:220:1:248:1893:25c8:1946 2001:4860::1"
INSIDE_ADDRESSES = """127.0.0.1 127.9.9.9 0.0.0.0 10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 192.0.0.8
198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 192.88.99.1 :: ::1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 fe80::1
fe80::1%eth0 fc00::1 fd12:3456::1 ff02::1 64:ff9b::7f00:1 64:ff9b:1::a00:1 2002:7f00:1:: 2001::1 2001:db8::1 ::127.0.0.1
4000::1 fec0::1 feff::1 3fff::1 3fff:fff::1 3ffe::1 5f00::1 100::1 2001:2::1 2001:20::1 2001:1ff::1"""


def test_may_connect_public_and_named_networks_alone() -> None:
    rules = webhook_rules(("10.1.0.0/16", "hooks.example.com", "fd00::/8"))

    assert [address for address in PUBLIC_ADDRESSES.split() if not RULES.may_connect(address)] == []
    assert [address for address in INSIDE_ADDRESSES.split() if RULES.may_connect(address)] == []
    assert [rules.may_connect(address) for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1")] == [True] * 3
    assert [rules.may_connect(address) for address in ("10.2.2.3", "127.0.0.1", "fc00::1")] == [False] * 3


def test_wrong_rules_of_operator_are_named() -> None:
    for host in ("", "*", "*.", "https://a.example", "a.example/", "a b", "[::1]", "a.example:0", "-a", "http://a.b/8"):
        with pytest.raises(InvalidArgument, match="webhook_hosts"):
            webhook_rules((host,))
    with pytest.raises(InvalidArgument, match=r"webhook_hosts: must have networks .* 10\.0\.0\.1/8 has host bits set"):
        webhook_rules(("hooks.example.com", "10.0.0.1/8"))


PUBLIC, INSIDE = "93.184.216.34", "10.0.0.1"


@pytest.mark.parametrize("addresses", [(PUBLIC, INSIDE), (INSIDE,), ()])
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
    rules = webhook_rules(("hooks.example.com",))
    caller = WebhookCaller(rules, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), 5.0)

    with pytest.raises(WebhookFailed, match="an address that may not be called"):
        await caller.post("https://hooks.example.com/", {}, b"{}")

    assert called == []
