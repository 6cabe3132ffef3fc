"""Validate, count and accept the requests of clients, and hold their running jobs."""
