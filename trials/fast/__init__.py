"""The forward pass over real tokens alone: rows are padded only inside the attention."""
