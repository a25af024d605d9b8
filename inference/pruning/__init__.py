"""A smaller network: a fit and thresholds in, a plain network and what it lacks out."""
