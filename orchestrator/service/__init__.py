"""What each verb does, for the command line and Python alike: typed options in, results out."""
