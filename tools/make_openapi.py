"""Write what people write as YAML in the form that a server reads without a library for YAML.

``python tools/make_openapi.py`` makes ``openapi.json.gz`` of ``openapi.yaml`` beside it; with
``--check`` it writes nothing and fails if the document would change. Only the JSON is in the wheel,
compressed, because installations have to stay small.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Final

import yaml

SOURCE: Final = (
    Path(__file__).resolve().parent.parent / "src/leasehold/http/native" / "openapi.yaml"
)
MADE: Final = SOURCE.with_suffix(".json.gz")


def main(arguments: list[str]) -> int:
    """Write the file, or compare; exit code 1 if it differs."""
    content = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    document = json.dumps(content, ensure_ascii=False).encode()
    if "--check" not in arguments:
        MADE.write_bytes(gzip.compress(document, mtime=0))
    elif not MADE.exists() or gzip.decompress(MADE.read_bytes()) != document:
        print(f"{MADE.name} is out of date: run python tools/make_openapi.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
