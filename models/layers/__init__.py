"""Layers with random weights: which of a network they are, and how their outputs are drawn."""
