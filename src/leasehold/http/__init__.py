"""The HTTP face: the application, its server, and one thin package per dialect."""
