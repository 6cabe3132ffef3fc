"""The UNet worker: one base model on one device, its step engine, and the attempts it runs."""
