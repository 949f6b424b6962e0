"""Finds, fetches and checks what a sweep file names: models, data sets, commits."""
