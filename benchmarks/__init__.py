"""Leasehold measured beside its peers: same machine, same run, rounds interleaved."""
