"""The fewest layers with fewer trials: what to run next, and how sure the answer is."""

# points, assumed: so much less than its neighbours a K that was not run may lose
DIP = 7.0
