"""How sure the numbers are: intervals, paired tests, the answer with its uncertainty."""
