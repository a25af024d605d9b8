"""A smaller network: a fit and where to cut in, a plain network and what it lacks out."""
