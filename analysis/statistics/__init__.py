"""The uncertainty of the numbers: intervals, paired tests, and the 90% set of an answer."""

# points, assumed: a K that a search did not run loses at most this much less than its neighbours
DIP = 7.0
