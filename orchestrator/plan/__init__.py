"""Cells, the trials that they share, what is done, what is missing, what waits for what."""
