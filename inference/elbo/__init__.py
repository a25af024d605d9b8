"""The bound: from a pair and rows to one number that can be differentiated."""
