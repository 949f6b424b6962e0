"""Networks as they are shipped: graphs, int8, cut vocabularies; made, run and measured."""
