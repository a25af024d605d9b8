"""The evidence by every estimator: models in, a table against the referee and choices out."""
