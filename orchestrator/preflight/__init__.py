"""What must be true before the first trial starts."""
