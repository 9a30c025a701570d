"""What stands in for hardware and what proves adapters, for this project's tests and for users'."""
