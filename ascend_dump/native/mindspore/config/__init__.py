"""MindSpore's dump JSON: build, parse and check it."""
