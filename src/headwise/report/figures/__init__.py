"""The figures of the report, each an `<svg>` element."""
