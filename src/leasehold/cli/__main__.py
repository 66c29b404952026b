"""``python -m leasehold.cli``."""

from leasehold.command import main

main()
