"""Test suites for adapters, and the pytest plugin."""
