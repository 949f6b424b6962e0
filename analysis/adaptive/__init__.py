"""The fewest layers with fewer trials: what to run next, and how sure the answer is."""
