"""Networks as they are shipped: graphs, int8, and programs that need neither torch nor lp-sweep."""
