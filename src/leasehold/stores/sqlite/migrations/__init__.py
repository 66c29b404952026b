"""Numbered migrations of the SQLite store.

To change the format: add ``NNNN_what.sql`` with the next number, never edit one that has been on
main, and add a copy of a database written before the change to ``tests/migration``.
"""
