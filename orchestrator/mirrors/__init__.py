"""A sweep's trials as runs of MLflow, Weights & Biases or trackio."""
