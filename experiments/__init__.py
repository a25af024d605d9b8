"""Published results and trials, run from a checkout: ``python -m experiments`` lists them."""
