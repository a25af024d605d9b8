"""Data sets by name, and toys."""
