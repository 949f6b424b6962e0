"""The work of each verb, for the command line and Python alike: typed options in, results out."""
