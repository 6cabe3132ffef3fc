"""Read and write profiles: measured costs of models, and the reuse, skipped steps and late LoRAs that they allow."""
