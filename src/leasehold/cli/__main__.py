"""``python -m leasehold.cli``."""

from leasehold.cli.root import main

main()
