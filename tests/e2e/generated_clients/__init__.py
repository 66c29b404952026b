"""Clients that public generators make of the OpenAPI document."""
