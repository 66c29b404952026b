"""Celery on Leasehold: workers in processes of their own, which are killed."""
