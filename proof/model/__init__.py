"""A model of the queue in TLA+, and TLC, which goes through what it can do."""
