"""What a webhook says, and that whoever knows its tenant's key can tell that it is ours."""

import base64
import hashlib
import hmac
import json

from pentimento.domain.requests import RequestState
from pentimento.stores.ledger.journal.webhooks import DueWebhook
from services.frontdoor.webhooks.signing import key_as_text, signed_headers, tenant_key, webhook_body

KEY, OLDER = b"k" * 32, b"o" * 32
DUE = DueWebhook("r-1", "acme", "https://a.example/", 0, RequestState.FAILED, "WORKER_LOST", 1000.0, 1060.5)


def test_a_body_tells_which_request_ended_how_and_nothing_else() -> None:
    assert json.loads(webhook_body(DUE)) == {
        "type": "request.failed",
        "timestamp": "1970-01-01T00:17:40.500+00:00",
        "data": {
            "request_id": "r-1",
            "state": "failed",
            "error_reason": "WORKER_LOST",
            "accepted_at_ms": 1_000_000,
            "finished_at_ms": 1_060_500,
        },
    }


def test_a_receiver_verifies_as_standard_webhooks_say() -> None:
    """Written out from the specification: HMAC-SHA256 of `id.timestamp.body` under the key behind whsec_."""
    body = webhook_body(DUE)
    headers = signed_headers((KEY,), "acme", "r-1", body, 1_800_000_000.7)
    shown = key_as_text(tenant_key(KEY, "acme"))

    secret = base64.b64decode(shown.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(secret, b"r-1.1800000000." + body, hashlib.sha256).digest()).decode()
    assert shown.startswith("whsec_")
    assert headers == {
        "webhook-id": "r-1",
        "webhook-timestamp": "1800000000",
        "webhook-signature": f"v1,{expected}",
    }


def test_tenants_keys_differ_and_older_ones_sign_beside_the_new() -> None:
    both = signed_headers((KEY, OLDER), "acme", "r-1", b"{}", 5.0)["webhook-signature"].split(" ")
    alone = [signed_headers((key,), "acme", "r-1", b"{}", 5.0)["webhook-signature"] for key in (KEY, OLDER)]

    assert both == alone
    assert len({tenant_key(KEY, "acme"), tenant_key(KEY, "globex"), tenant_key(OLDER, "acme"), KEY}) == 4
