"""A fake of pyACL."""
