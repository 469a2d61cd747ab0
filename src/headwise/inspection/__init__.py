"""Looking into finished runs: what the heads of their models do, as a page and as numbers."""
