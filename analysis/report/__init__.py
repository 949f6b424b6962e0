"""One page for people about a store, with the answer first. The HTML needs no other file."""
