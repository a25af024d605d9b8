"""Published results of variance networks."""
