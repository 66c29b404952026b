"""The results of a queue in a Delta table."""
