"""Signing and checking requests: pure functions shared by the server's dialects and by clients."""
