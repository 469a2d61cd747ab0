"""The page of `headwise explore`: its template, style and scripts, and what joins them."""
