"""A paced worker: the real engine and streams over a model that sleeps for profiled times. Not for deployments."""
