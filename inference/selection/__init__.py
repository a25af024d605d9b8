"""Hyperparameters by optimisation at two levels: a pair with levels in, the selected fit out."""
