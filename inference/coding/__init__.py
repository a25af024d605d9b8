"""Numbers into bits and back: arrays without loss, and draws of a posterior at the price of its KL."""
