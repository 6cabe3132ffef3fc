"""Which addresses a webhook may have, by its text and by what its name stands for."""

import pytest

from pentimento.domain.errors import FailedPrecondition, InvalidArgument
from services.frontdoor.webhooks.rules import WebhookRules, WebhookTarget, webhook_rules

RULES = webhook_rules(("hooks.example.com", "*.example.org", "127.0.0.1:8443"), (), plain_http=False)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://hooks.example.com", WebhookTarget("https", "hooks.example.com", 443, "/")),
        ("https://hooks.example.com:443/a/b?c=%20d", WebhookTarget("https", "hooks.example.com", 443, "/a/b?c=%20d")),
        ("https://a.b.example.org/x", WebhookTarget("https", "a.b.example.org", 443, "/x")),
        ("https://127.0.0.1:8443/", WebhookTarget("https", "127.0.0.1", 8443, "/")),
    ],
)
def test_an_address_of_an_allowed_host_is_taken_apart(url: str, target: WebhookTarget) -> None:
    assert RULES.target(url) == target


def test_the_header_host_names_a_port_where_it_is_not_the_usual_one() -> None:
    assert RULES.target("https://hooks.example.com:443/").authority == "hooks.example.com"
    assert RULES.target("https://127.0.0.1:8443/").authority == "127.0.0.1:8443"


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example.net/",
        "https://hooks.example.com.evil.net/",
        "https://xhooks.example.com/",
        "https://example.org/",
        "https://evilexample.org/",
        "https://hooks.example.com:8443/",
        "https://127.0.0.1/",
        "https://127.0.0.1:84/",
        "https://2130706433:8443/",
        "https://0x7f.0.0.1:8443/",
    ],
)
def test_other_hosts_are_refused(url: str) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        RULES.target(url)
    assert caught.value.reason == "WEBHOOK_REFUSED"


@pytest.mark.parametrize(
    "url",
    [
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
    ],
)
def test_what_is_no_plain_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"webhook\.url"):
        RULES.target(url)


def test_nothing_is_called_where_no_host_is_named() -> None:
    with pytest.raises(FailedPrecondition) as caught:
        WebhookRules().target("https://hooks.example.com/")
    assert caught.value.reason == "WEBHOOKS_OFF"


def test_plain_http_is_called_where_the_operator_says_so() -> None:
    rules = webhook_rules(("hooks.example.com",), (), plain_http=True)

    assert rules.target("http://hooks.example.com/").port == 80
    with pytest.raises(FailedPrecondition):
        rules.target("http://hooks.example.com:443/")


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "2001:4860::1"])
def test_public_addresses_are_called(address: str) -> None:
    assert RULES.may_connect(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "192.0.0.8",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "192.88.99.1",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "2001::1",
        "2001:db8::1",
        "::127.0.0.1",
        "4000::1",
        "fec0::1",
        "feff::1",
        "3fff::1",
        "3fff:fff::1",
        "3ffe::1",
        "5f00::1",
        "100::1",
        "2001:2::1",
        "2001:20::1",
        "2001:1ff::1",
    ],
)
def test_addresses_inside_are_not(address: str) -> None:
    assert not RULES.may_connect(address)


def test_networks_that_the_operator_names_are_called() -> None:
    rules = webhook_rules(("hooks.example.com",), ("10.1.0.0/16", "fd00::/8"), plain_http=False)

    assert [rules.may_connect(address) for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1")] == [True] * 3
    assert [rules.may_connect(address) for address in ("10.2.2.3", "127.0.0.1", "fc00::1")] == [False] * 3


@pytest.mark.parametrize(
    "host", ["", "*", "*.", "https://a.example", "a.example/", "a b", "[::1]", "a.example:0", "-a"]
)
def test_a_wrong_host_of_the_operators_is_named(host: str) -> None:
    with pytest.raises(InvalidArgument, match="webhook_hosts"):
        webhook_rules((host,), (), plain_http=False)


def test_a_wrong_network_of_the_operators_is_named() -> None:
    with pytest.raises(InvalidArgument, match="webhook_networks"):
        webhook_rules((), ("10.0.0.1/8",), plain_http=False)
