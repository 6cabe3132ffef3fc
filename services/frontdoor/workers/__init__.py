"""Connect to workers, run attempts on them, and track the models that they hold or are to hold."""
