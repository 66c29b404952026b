# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""The synchronous client, made by tools/make_sync.py from the asynchronous one."""
