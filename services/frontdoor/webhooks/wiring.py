"""Construct the webhooks of a frontdoor."""

import ssl

from pentimento.domain.backoff import Backoff
from pentimento.domain.clock import Clock
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.shared_keys import SigningKeys
from pentimento.stores.ledger.journal.webhooks import JournalWebhooks
from services.frontdoor.settings import FrontdoorSettings
from services.frontdoor.webhooks.calling import WebhookCaller
from services.frontdoor.webhooks.delivering import DeliveryLimits, Webhooks
from services.frontdoor.webhooks.rules import webhook_rules

LONGEST_PAUSE_S = 3600.0


def wire_webhooks(
    settings: FrontdoorSettings, journal: JournalWebhooks, clock: Clock, keys: SigningKeys | None
) -> Webhooks:
    """Return the webhooks that the settings allow; none are called without hosts. Raises InvalidArgument naming the
    wrong setting."""
    rules = webhook_rules(settings.webhook_hosts, settings.webhook_networks, settings.webhook_plain_http)
    pauses = Backoff(settings.webhook_pause_s, max(LONGEST_PAUSE_S, settings.webhook_pause_s))
    # Reading the system's authorities is slow; a start without webhooks skips it.
    tls = _believing(settings) if rules.hosts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    caller = WebhookCaller(rules, tls, settings.webhook_timeout_s)
    limits = DeliveryLimits(settings.webhook_tries, pauses, _give_up_s(settings, pauses))
    return Webhooks(journal, clock, caller, rules, keys or no_keys, limits)


def no_keys() -> tuple[bytes, ...]:
    """Return no keys: without webhooks none are needed."""
    return ()


def _give_up_s(settings: FrontdoorSettings, pauses: Backoff) -> float:
    """Return the seconds that requests are stored, or if longer the seconds that all tries of a webhook take."""
    tries_s = settings.webhook_tries * settings.webhook_timeout_s
    pauses_s = sum(pauses.delay_s(failures) for failures in range(1, settings.webhook_tries))
    return max(settings.result_retention_h * 3600, tries_s + pauses_s)


def _believing(settings: FrontdoorSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.webhook_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument.of("webhook_ca_file", f"cannot be read: {type(error).__name__}") from None
