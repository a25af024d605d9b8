"""A training step made fast: a pair in, a graph of tensor operations out."""
