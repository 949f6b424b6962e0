"""A sweep's trials as runs of MLflow, Weights & Biases, TensorBoard or trackio."""
