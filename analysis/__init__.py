"""SQL views over the records and the tables made from them. Imports storage only."""
