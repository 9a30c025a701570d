"""The self-test: captures of tiny networks, checks of their dumps, and probes of assumptions about devices.

`ascend-dump selftest` runs it. `assumptions.json` lists the assumptions that no device has confirmed yet.
"""
