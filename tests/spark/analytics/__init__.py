"""The lifecycle tables, held against an oracle in plain Python."""
