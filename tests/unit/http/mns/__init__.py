"""The MNS dialect without HTTP."""
