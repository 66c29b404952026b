"""Analytics of the event log on Spark: what became of attempts and messages."""
