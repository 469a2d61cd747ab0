"""What the heads did, what it cost, and the report."""
