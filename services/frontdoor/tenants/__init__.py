"""Tenants that operators made: who may call by which keys, within which quotas, and what was used."""
