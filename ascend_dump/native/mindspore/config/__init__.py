"""MindSpore's dump JSON: built, parsed and checked."""
