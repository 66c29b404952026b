"""The load generator: one cheap process, closed loop, the same code for every server."""
