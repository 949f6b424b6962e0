"""The uncertainty of the numbers: intervals, paired tests, and the 90% set of an answer."""
