"""Networks as they are shipped: made, run, and measured."""
