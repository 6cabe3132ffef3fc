"""Telling others that a job has ended: which addresses may be called, how it is signed, called, and tried again."""
