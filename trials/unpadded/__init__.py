"""The forward pass over real tokens alone: no row is padded but inside the attention."""
