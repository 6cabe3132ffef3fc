"""Quality kept online: hits painted again from noise when nobody waits, and compared."""
