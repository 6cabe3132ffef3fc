"""The frontdoor's journal: requests, and the objects, pins and webhooks that belong to them."""
