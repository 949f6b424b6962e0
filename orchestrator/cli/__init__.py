"""The command line: one module for each group of verbs; it parses, calls one function, prints."""
