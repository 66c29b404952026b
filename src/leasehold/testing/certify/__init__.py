"""Tells what a worker, in whatever language, does wrong with its leases.

``leasehold certify COMMAND`` starts the worker once for each scenario, on a queue of a server of
its own. A proxy between the two sees every request and can fail it; a small web service stands
for the work, so that a scenario decides how long it takes and how it ends; and the server's clock
and event log tell what became of the messages.
"""
