"""One page for people: what a store says, with its answer first. HTML that needs nothing else."""
