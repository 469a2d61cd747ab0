"""Writes docs/claims.md and its pictures from what is kept.

- `page`: the whole, from `*.md.jinja`, which `templates` loads.
- `experiment_results` and `experiment_table`: what it says of an experiment; `convergence`: whether
  a baseline had stopped learning.
- `totals`: what it says of all claims together; `key_figures`: the figure in the list of claims.
- `why_section`: its answers why; `pictures/`: its SVG files.
"""
