#!/bin/sh
# Has git run the hooks in tools/hooks. Run by `make setup`, in the top folder of the project.
# Does nothing outside of a checkout, also if what lies around it is one, and leaves alone hooks
# that were configured before.
top=$(git rev-parse --show-toplevel 2>/dev/null) || exit 0
[ "$(cd "$top" && pwd -P)" = "$(pwd -P)" ] || exit 0
hooks=$(git config core.hooksPath)
if [ -z "$hooks" ]; then
    git config core.hooksPath tools/hooks
elif [ "$hooks" != tools/hooks ]; then
    echo "git runs the hooks in $hooks; those of this project are in tools/hooks" >&2
fi
