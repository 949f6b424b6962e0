"""What a sweep file names, found: models, data sets, commits; and fetched."""
