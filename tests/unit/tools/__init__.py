"""Tests of what is in tools/: the rules of the house, the hooks of git."""
