"""Test operators' changes of tenants over a real ledger: in force on return, and rejected with the field's name."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from lab.fixtures.clocks import SetClock
from pentimento.clients.frontdoor import TenantsClient
from pentimento.dataplane.events import Event, QuotasReceived
from pentimento.domain.errors import InvalidArgument, NotFound
from pentimento.domain.tenants import DAY_S, HOUR_S, Caller, Role, Tenant, TenantKey, TenantQuota, UsagePeriod
from pentimento.rpc.tokens import KeyRing, blinded, hash_token
from pentimento.stores.ledger import open_journal
from services.frontdoor.metrics import TENANT_KEYS, TENANTS
from services.frontdoor.tenants.administration import TenantServicer
from services.frontdoor.tenants.directory import TenantDirectory
from services.frontdoor.tenants.usage import UsageMeter
from tests.support.tenants import administered_by

NOW_S = 1_800_000_000.0
# Ten leap years.
LONGEST_S = 316_224_000
TWO, FIVE = TenantQuota(weight=2.0), TenantQuota(requests_per_s=5.0)
Administer = Callable[[TenantsClient], Awaitable[object]]


def ms(seconds: float) -> int:
    return round(seconds * 1000)


class Office:
    """A tenant administration, and the events that it reports."""

    def __init__(self, folder: Path) -> None:
        self.clock = SetClock(wall_s=NOW_S)
        self.journal = open_journal(f"sqlite:///{folder}/journal.sqlite", self.clock)
        self.keys = KeyRing(self.clock.wall)
        self.told: list[Event] = []
        ledger = self.journal.tenants
        self.directory = TenantDirectory(ledger, self.keys, self.told.append)
        self.usage = UsageMeter(ledger, self.clock)
        # Erasures have tests of their own.
        servicer = TenantServicer(ledger, self.directory, self.usage, None, self.clock, HOUR_S)  # type: ignore[arg-type]
        self.administration = administered_by(servicer)

    def caller(self, secret: str) -> Caller | None:
        return self.keys.find(blinded(hash_token(secret)))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    made.journal.close()


async def test_tenants_are_in_force_as_soon_as_they_are_made_changed_or_gone(office: Office) -> None:
    made = await office.administration.create("acme", TWO)
    assert (made, office.directory.quota_of("acme")) == (Tenant("acme", TWO, NOW_S, 1), TWO)

    changed = await office.administration.update("acme", FIVE, 1)
    assert (changed, office.directory.quota_of("acme")) == (Tenant("acme", FIVE, NOW_S, 2), FIVE)
    assert await office.administration.tenants() == (changed,)

    await office.administration.delete("acme")
    assert (office.directory.quota_of("acme"), await office.administration.tenants()) == (TenantQuota(), ())
    assert office.told == [QuotasReceived((("acme", TWO),)), QuotasReceived((("acme", FIVE),)), QuotasReceived(())]


async def test_key_authenticates_its_tenant_from_creation_to_end(office: Office) -> None:
    await office.administration.create("acme", TWO)

    key, secret = await office.administration.create_key("acme", 60)

    assert (key.tenant, key.created_at, key.expires_at) == ("acme", NOW_S, NOW_S + 60.0)
    words = secret.split("_", 2)
    assert (words[:2], len(words[1]), len(words[2])) == (["pentimento", key.key_id], 16, 43)
    assert office.caller(secret) == Caller("acme", frozenset({Role.USER}))
    assert office.caller(secret + "x") is None
    office.clock.wall_s += 60.0
    assert office.caller(secret) is None


async def test_keys_are_counted_and_change_no_quota(office: Office) -> None:
    await office.administration.create("acme", TWO)
    await office.administration.create("other", TWO)
    told = list(office.told)
    for _ in range(3):
        await office.administration.create_key("acme", None)

    assert (TENANTS._value.get(), TENANT_KEYS._value.get(), len(office.keys)) == (2, 3, 3)
    assert office.told == told


async def test_rotated_key_ends_after_its_grace(office: Office) -> None:
    await office.administration.create("acme", TWO)
    old, old_secret = await office.administration.create_key("acme", None)
    assert old.expires_at is None

    new, secret, ended = await office.administration.rotate_key(old.key_id, 10, 100)

    assert ended == TenantKey(old.key_id, "acme", NOW_S, NOW_S + 10.0)
    assert (new.tenant, new.expires_at) == ("acme", NOW_S + 100.0)
    assert office.caller(old_secret) == office.caller(secret) == Caller("acme", frozenset({Role.USER}))
    office.clock.wall_s += 10.0
    assert (office.caller(old_secret), office.caller(secret) is None) == (None, False)
    assert await office.administration.keys("acme") == (ended, new)


async def test_recreated_tenant_calls_under_another_identity(office: Office) -> None:
    for quota in (TWO, FIVE):
        await office.administration.create("acme", quota)
        office.usage.cached((await made_key(office)).tenant, 3)
        await office.administration.delete("acme")
    await office.administration.create("acme", FIVE)

    caller = await made_key(office)

    assert (caller.tenant, office.directory.quota_of(caller.tenant)) == ("*3*acme", FIVE)
    # A token of the file has the name itself.
    assert office.directory.quota_of("acme") == FIVE
    assert await office.administration.usage("acme", ms(NOW_S - DAY_S), ms(NOW_S + DAY_S)) == ()


async def test_restored_tenant_has_its_identity_again(office: Office) -> None:
    await office.administration.create("acme", TWO)
    await office.administration.delete("acme")
    office.clock.wall_s += HOUR_S - 1

    restored = await office.administration.restore("acme")

    assert (restored, (await made_key(office)).tenant) == (Tenant("acme", TWO, NOW_S, 1), "acme")
    await office.administration.delete("acme")
    office.clock.wall_s += HOUR_S
    with pytest.raises(NotFound):
        await office.administration.restore("acme")


async def made_key(office: Office) -> Caller:
    """Return the caller of a new key of acme."""
    caller = office.caller((await office.administration.create_key("acme", None))[1])
    assert caller is not None
    return caller


async def test_revoked_key_is_refused_at_once(office: Office) -> None:
    await office.administration.create("acme", TWO)
    key, secret = await office.administration.create_key("acme", None)

    revoked = await office.administration.revoke_key(key.key_id)

    assert revoked == TenantKey(key.key_id, "acme", NOW_S, None, NOW_S)
    assert (office.caller(secret), len(office.keys)) == (None, 0)


NAMED: list[tuple[str, Administer]] = [
    ("name", lambda one: one.create("", TWO)),
    ("name", lambda one: one.create("*shared*", TWO)),
    ("name", lambda one: one.create("*2*acme", TWO)),
    ("name", lambda one: one.restore("")),
    ("name", lambda one: one.update("", TWO, 1)),
    ("name", lambda one: one.delete("")),
    ("tenant", lambda one: one.keys("")),
    ("tenant", lambda one: one.create_key("", None)),
    ("key_id", lambda one: one.rotate_key("", 0, None)),
    ("key_id", lambda one: one.revoke_key("")),
    ("tenant", lambda one: one.usage("", 0, 1)),
    ("expires_in_s", lambda one: one.create_key("acme", 0)),
    ("expires_in_s", lambda one: one.create_key("acme", LONGEST_S + 1)),
    ("grace_s", lambda one: one.rotate_key("k", LONGEST_S + 1, None)),
    ("to_ms", lambda one: one.usage("acme", 1, 1)),
    ("to_ms", lambda one: one.usage("acme", -1, 1)),
    ("to_ms", lambda one: one.usage("acme", 5, 6 + ms(402 * DAY_S))),
]


async def test_administration_wrong_field_is_named_and_changes_nothing(office: Office) -> None:
    await office.administration.create("acme", TWO)
    before = office.journal.tenants.revision().result()

    for field, call in NAMED:
        with pytest.raises(InvalidArgument) as refused:
            await call(office.administration)
        assert refused.value.message.startswith(f"{field}: must be ")

    assert office.journal.tenants.revision().result() == before


async def test_shortest_and_longest_lifetimes_are_accepted(office: Office) -> None:
    await office.administration.create("acme", TWO)

    lives = [(await office.administration.create_key("acme", life_s))[0] for life_s in (1, LONGEST_S)]
    _, _, ended = await office.administration.rotate_key(lives[1].key_id, 0, LONGEST_S)

    assert [key.expires_at for key in lives] == [NOW_S + 1.0, NOW_S + LONGEST_S]
    assert ended.expires_at == NOW_S
    with pytest.raises(InvalidArgument, match="expires_in_s: must be between 1 and 316224000, got 316224001"):
        await office.administration.rotate_key(lives[0].key_id, 0, LONGEST_S + 1)


async def test_usage_includes_unsaved_counts_within_kept_time(office: Office) -> None:
    office.usage.accepted("acme")
    office.usage.accepted("other")
    begin = NOW_S - NOW_S % DAY_S

    used = await office.administration.usage("acme", ms(begin), ms(begin + 402 * DAY_S))

    assert used == (UsagePeriod(int(begin), 1),)


async def test_usage_of_milliseconds_is_returned_by_hours(office: Office) -> None:
    office.clock.wall_s -= HOUR_S
    office.usage.refused("acme", "QUEUE_FULL", 9)
    office.clock.wall_s += HOUR_S
    office.usage.refused("acme", "QUEUE_FULL", 3)
    hour_at = int(NOW_S) // HOUR_S * HOUR_S

    (period,) = await office.administration.usage("acme", ms(hour_at), ms(hour_at) + 1, HOUR_S)

    assert period == UsagePeriod(hour_at, refused_counts={"QUEUE_FULL": 3})


async def test_usage_from_time_zero_is_allowed(office: Office) -> None:
    assert await office.administration.usage("acme", 0, 1) == ()
    assert await office.administration.usage("acme", 5, 5 + ms(402 * DAY_S)) == ()
