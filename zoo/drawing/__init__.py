"""Draw the models' training scenes by code, with captions, labels and conditions."""
