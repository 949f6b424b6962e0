"""Reads, writes and checks cluster files of Ray's launcher. Knows no sweep."""
