"""Distributions that torch and Pyro do not have."""
