"""What a stopped training raises."""


class Interrupted(Exception):
    """Training was stopped. When it is started again, it continues from its last checkpoint."""
