"""Alibaba Cloud's JavaScript SDK for MNS, unchanged, against the real server."""
