"""A tiny pre-trained encoder and toy tasks, shipped for a run without any network."""
