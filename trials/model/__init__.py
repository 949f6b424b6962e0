"""Encoders: families, checkpoints, and networks with fewer layers or feed-forwards."""
