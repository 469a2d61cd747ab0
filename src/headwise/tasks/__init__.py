"""The tasks: in each file what is predicted from which data, and how it is scored."""
