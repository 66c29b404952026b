"""A build hook of hatchling: packs the pages of ``leasehold help`` into the wheel, compressed.

Which ones they are says pyproject.toml.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackHelp(BuildHookInterface):  # type: ignore[misc]  # hatchling has no types that hold
    """See the module."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages to a wheel; an editable installation reads them where they are."""
        if version == "editable":
            return
        for page in self.config["pages"]:
            packed = Path(self.root, "build", "help_pages", f"{page}.gz")
            packed.parent.mkdir(parents=True, exist_ok=True)
            packed.write_bytes(gzip.compress(Path(self.root, "docs", page).read_bytes(), mtime=0))
            build_data["force_include"][str(packed)] = f"leasehold/help_pages/{page}.gz"
