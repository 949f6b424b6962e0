"""What a user may write: YAML with lines, overrides, every mistake at once. Knows no model."""
