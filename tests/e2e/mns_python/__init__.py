"""The official Python SDK of MNS, unchanged, against the real server."""
