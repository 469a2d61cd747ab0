"""The numbers: what training and heads come to, statistics, cost and speed. No page, no table."""
