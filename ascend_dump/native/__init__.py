"""Formats that CANN and the frameworks define: names, files, graphs and configuration.

Pure functions: no process state, no import of a framework.
"""
