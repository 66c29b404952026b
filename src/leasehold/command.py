"""Where the program ``leasehold`` begins, whichever of its libraries are installed."""

import os
import sys

_MISSING = 1
_INTERRUPTED = 130
try:
    import signal
except KeyboardInterrupt:
    os._exit(_INTERRUPTED)


def main() -> None:
    """Run the command that the command line names.

    A library that is not installed is named in one line, with the extra that brings it, whichever
    command finds out and however late: nothing here may need a library before that. Ctrl+C ends
    each command with 130, unless it gives it a meaning of its own.
    """
    # An interrupt during imports would be raised in libraries that know nothing of it. Where SIGINT
    # is ignored, as in the background of a script, it stays so.
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        from leasehold.cli.root import main as root  # noqa: PLC0415 - it needs a library

        signal.signal(signal.SIGINT, before)
        root()
    except ModuleNotFoundError as error:
        from leasehold.extras import need_of  # noqa: PLC0415 - few runs need it

        need = need_of(sys.argv[1:], error)
        if need is None:
            raise
        sys.stderr.write(f"Error: {need}\n")
        sys.exit(_MISSING)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
