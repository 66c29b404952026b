"""Tests of the dialects, each in its folder."""
