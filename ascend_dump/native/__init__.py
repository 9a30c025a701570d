"""The formats that CANN and the frameworks define: names, files, graphs and configuration.

All functions are pure: they use no state of the process and import no framework.
"""
