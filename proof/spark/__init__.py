"""Spark queries whose driver, executors, Python workers and server are killed at random moments."""
