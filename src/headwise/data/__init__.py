"""The road of data: from files, hub datasets and installed packages to splits and batches."""
