"""Stateful queries on the messages of queues."""
