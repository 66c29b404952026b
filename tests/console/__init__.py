"""The console's pages, driven in a browser."""
