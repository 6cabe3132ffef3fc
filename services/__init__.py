"""The processes of the suite, one folder each. No service imports another."""
