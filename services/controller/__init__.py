"""Registry of replicas, their reports, and the plan."""
