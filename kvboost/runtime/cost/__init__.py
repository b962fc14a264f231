"""What things cost on this machine with this model, and whether a hit is worth it."""
