"""Build the body of a webhook and sign it: Standard Webhooks 1.0 with HMAC-SHA256, a key for each tenant.

The tenant's key is derived from the deployment's (HMAC over its name), so that no tenant key is stored, and the key of
one tenant cannot sign for another.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pentimento.stores.ledger.journal.webhooks import DueWebhook

_PURPOSE = b"pentimento webhook 1\n"


def tenant_key(key: bytes, tenant: str) -> bytes:
    """Return the 32-byte key that signs a tenant's webhooks."""
    return hmac.digest(key, _PURPOSE + tenant.encode(), hashlib.sha256)


def key_as_text(key: bytes) -> str:
    """Return a key as Standard Webhooks write it."""
    return "whsec_" + base64.b64encode(key).decode()


def webhook_body(due: DueWebhook) -> bytes:
    """Return the body to post: the job that ended, how and when; neither prompt nor image. JSON in UTF-8."""
    told = {
        "type": f"request.{due.state.value}",
        "timestamp": datetime.fromtimestamp(due.finished_at, UTC).isoformat(timespec="milliseconds"),
        "data": {
            "request_id": due.job_id,
            "state": due.state.value,
            "error_reason": due.error_reason,
            "accepted_at_ms": round(due.accepted_at * 1000),
            "finished_at_ms": round(due.finished_at * 1000),
        },
    }
    return json.dumps(told, separators=(",", ":")).encode()


def signed_headers(keys: Sequence[bytes], tenant: str, message_id: str, body: bytes, now: float) -> Mapping[str, str]:
    """Return the headers that sign a body at `now` (seconds since 1970) with each of the deployment's keys: a receiver
    accepts any. `message_id` stays the same across tries."""
    timestamp = str(int(now))
    signed = b".".join((message_id.encode(), timestamp.encode(), body))
    digests = (hmac.digest(tenant_key(key, tenant), signed, hashlib.sha256) for key in keys)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join("v1," + base64.b64encode(digest).decode() for digest in digests),
    }
