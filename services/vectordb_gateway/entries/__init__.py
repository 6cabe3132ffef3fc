"""Entries: reserve, commit, pin, and the rules that decide what to keep."""
