"""Migrations of the PostgreSQL store: numbered scripts, each applied once."""
