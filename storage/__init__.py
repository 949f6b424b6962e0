"""The ground: trial identity, records, the store and its SQL catalog. Imports nothing of ours."""
