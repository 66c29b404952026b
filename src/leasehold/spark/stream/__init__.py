"""Queues as exactly-once streams: each micro-batch is one claim of the server."""
