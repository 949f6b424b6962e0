"""SQL views over the records, and the tables, figures and reports made from them. Imports only
storage."""
