"""The figures of the paper, and a few beside them, drawn from a store."""
