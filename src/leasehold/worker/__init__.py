"""The worker library: a person writes a handler, and the leases are somebody else's business.

It speaks to a queue through :class:`leasehold.worker.queues.QueueClient`, so that the same worker
runs on Leasehold, Azure Queue Storage and Alibaba MNS.
"""
