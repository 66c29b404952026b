"""Messages of MNS that take longer than their visibility timeout, and a manager that knows it."""
