"""A video workflow over a queue: scan, encode, compress, with workers that die on the way."""
