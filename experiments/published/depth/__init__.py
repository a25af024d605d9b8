"""Published results of learnt depth."""
