"""HTTP itself: the listener and its bounds, callers, origins, errors. Nothing here depends on images."""
