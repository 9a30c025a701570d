"""A fake of MindSpore."""
