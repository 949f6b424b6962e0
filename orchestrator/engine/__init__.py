"""A plan, run on Ray: the queue, the searcher, the workers, and what follows a loss."""
