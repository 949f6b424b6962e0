"""The fewest layers with fewer trials: what to run next, and how sure the answer is."""

# points, assumed: a K that was not run loses at most this much less than its neighbours
DIP = 7.0
