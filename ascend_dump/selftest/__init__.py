"""What a device proves or refutes: captures of tiny networks, checks of what they wrote, and the assumptions.

`ascend-dump selftest` runs it. What the project believes of devices without having seen one is in `assumptions.json`.
"""
