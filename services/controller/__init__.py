"""Register replicas, collect their reports, and publish the plan."""
