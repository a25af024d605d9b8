"""Published results, one module for each: run, kept and printed as tables."""
