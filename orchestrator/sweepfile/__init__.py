"""Reads sweep files: YAML with lines, overrides, every mistake at once. Knows no model."""
