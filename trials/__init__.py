"""The work of one GPU, from a trial spec to its record. Imports storage, never Ray."""
