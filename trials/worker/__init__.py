"""What a worker does with one job, from its inputs to the stored record."""
