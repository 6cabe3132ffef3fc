"""Use remote ControlNets (Katz, section 5): streams to their replicas, and the engine's source of residuals."""
