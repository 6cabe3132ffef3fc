"""Decide the start and the models of a request, and write its cache entries."""
