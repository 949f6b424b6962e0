"""Rows of a task, from files or the hub to encoded batches."""
