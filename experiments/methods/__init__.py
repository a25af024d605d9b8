"""The table of methods, and what each of them does in a run."""
