"""Where messages live: one interface, several stores, one contract suite over all of them."""
