"""Batch reads, which lease nothing: a queue as it is, and the event log."""
