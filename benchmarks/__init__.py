"""How long a training step takes, ours beside everybody else's."""
