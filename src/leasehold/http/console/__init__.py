"""The console: pages for browsers, and what they ask for beside the native API."""

from leasehold.http.console.pages import ConsoleDialect, is_of_console

__all__ = ["ConsoleDialect", "is_of_console"]
