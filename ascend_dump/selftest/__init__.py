"""The self-test: it captures tiny networks, checks their dumps, and probes assumptions about devices.

`ascend-dump selftest` runs the self-test. `assumptions.json` lists all assumptions about devices. A check tests a
promise of `capture`; a probe tests an assumption on a device.
"""
