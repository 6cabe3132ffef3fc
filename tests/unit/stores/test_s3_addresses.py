"""Bound the lifetime of signed S3 addresses: 1 second to 7 days."""

import time
from typing import Any

import pytest

from pentimento.stores.objects.s3 import S3ObjectStore
from pentimento.stores.objects.store import refer_to

WEEK_S = 7 * 24 * 3600
NOW = 1_800_000_000.25


class AskedClient:
    """Record the lifetimes of signed addresses."""

    def __init__(self) -> None:
        self.lifetimes_s: list[int] = []

    def generate_presigned_url(self, call: str, parameters: dict[str, Any], ExpiresIn: int) -> str:
        self.lifetimes_s.append(ExpiresIn)
        return "https://store.example/"


@pytest.mark.parametrize("from_now_s, lifetime_s", [(-60, 1), (0, 1), (60, 60), (WEEK_S, WEEK_S), (2 * WEEK_S, WEEK_S)])
def test_it_lives_until_it_is_to_end_as_far_as_the_store_may(
    monkeypatch: pytest.MonkeyPatch, from_now_s: int, lifetime_s: int
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    client = AskedClient()

    S3ObjectStore(client, "bucket", "").presign(refer_to("results/a", b"a"), "image/png", int(NOW) + from_now_s)

    assert client.lifetimes_s == [lifetime_s]
