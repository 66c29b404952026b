"""The history checker over other queues, each held to its own promise."""
