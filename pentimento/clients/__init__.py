"""Typed clients of every service: domain values in and out, domain errors raised."""
