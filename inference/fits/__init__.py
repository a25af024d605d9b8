"""Functions that a person calls to train, and what comes back."""
