"""What is timed: a step of each kind, with everyone who takes it."""
