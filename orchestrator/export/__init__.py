"""Networks as folders that plain transformers loads, each tried before it is published."""
