"""A checker of what clients saw of a queue from outside, and the faults that it is tried under."""
