"""Models: described, loaded, warmed up, measured, switched as the plan says."""
