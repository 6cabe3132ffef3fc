"""What clients ask for: judged, counted, accepted, and the jobs under way."""
