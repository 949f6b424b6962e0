"""Forward passes over real tokens only: rows are padded only inside the attention."""
