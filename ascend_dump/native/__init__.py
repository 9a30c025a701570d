"""The formats that CANN and the frameworks define: names, files, graphs and configuration.

No module imports a framework. The checks get facts about the process as arguments, and examine this process only if the
facts are left out. `tensorflow.tf1_dump` is a module for users' programs, which uses the state of their process.
"""
