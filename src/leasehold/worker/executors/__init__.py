"""Where handlers run: in threads, in an event loop, in other processes."""
