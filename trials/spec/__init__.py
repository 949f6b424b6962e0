"""The definition of a trial: its specification, identity, strategies, procedures and removals.
Pure: imports nothing else of ours and no torch, so every room may import it."""
