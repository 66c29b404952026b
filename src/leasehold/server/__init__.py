"""The server process: settings, wiring, its own pages, metrics and the log."""
