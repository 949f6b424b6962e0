"""Measurements of a network, layer by layer. `registry` has all by name."""
