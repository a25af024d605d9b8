"""Published results of structure selection."""
