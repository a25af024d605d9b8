"""How many digits of each number are needed, and networks with no more than these."""
