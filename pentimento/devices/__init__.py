"""What models cost on devices, and what they make there: measured, recorded, emulated."""
