"""The work on one job, from its inputs to the stored record."""
