"""Training: one loop on accelerate, the rules of systems, and batches that can be resumed."""
