"""Training rows that stay where they are, on a disk or behind a loader, and are read in pieces."""
