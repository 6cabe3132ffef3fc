"""Manage the tenants that operators created: their keys, quotas and usage."""
