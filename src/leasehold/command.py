"""Where the program ``leasehold`` begins, whichever of its libraries are installed."""

import sys

from leasehold.extras import need_of

_MISSING = 1


def main() -> None:
    """Run the command that the command line names.

    A library that is not installed is named in one line, with the extra that brings it, whichever
    command finds out and however late: nothing here may need a library before that.
    """
    try:
        from leasehold.cli.root import main as root  # noqa: PLC0415 - it needs a library

        root()
    except ModuleNotFoundError as error:
        need = need_of(sys.argv[1:], error)
        if need is None:
            raise
        sys.stderr.write(f"Error: {need}\n")
        sys.exit(_MISSING)
