"""Verbs over rows: what the stores in databases have in common."""
