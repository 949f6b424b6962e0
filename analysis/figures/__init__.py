"""The figures of the paper and a few others, drawn from a store."""
