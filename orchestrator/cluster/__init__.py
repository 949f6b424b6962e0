"""Cluster files of Ray's launcher: read, written, priced. Knows no sweep."""
