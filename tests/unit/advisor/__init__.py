"""Tests of the statistics of visibility timeouts."""
