"""Workers that ``leasehold certify`` is tried on: good ones, and the loops that manuals show."""
