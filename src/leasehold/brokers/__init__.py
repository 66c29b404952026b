"""Leasehold as the broker of task frameworks: Celery (by kombu), Dramatiq and Taskiq."""
