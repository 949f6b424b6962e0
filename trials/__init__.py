"""What one GPU does: from a trial spec to its record. Imports storage, never Ray."""
