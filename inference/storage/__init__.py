"""What is written to disk, and read again: runs and plain networks, each file whole or not
there."""
