"""Run the UNet worker: one base model on one device, its step engine, and its attempts."""
