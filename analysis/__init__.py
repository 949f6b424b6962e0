"""What the records say: SQL views and the tables made from them. Imports storage only."""
