"""The vocabulary and the rules of the queue: pure, standard library only, no clock, no I/O."""
