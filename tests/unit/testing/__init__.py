"""Tests of the virtual clock, of failures on demand, and of what our users test with."""
