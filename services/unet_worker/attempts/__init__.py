"""Attempts: judged, held, executed from their start to their encoded picture."""
