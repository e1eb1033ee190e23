"""Comparisons as people and programs read them; nothing here computes a result."""
