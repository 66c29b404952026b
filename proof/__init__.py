"""Proof in public: what can be rerun, applied to others as well, and can fail."""
