"""The page of an analysis: a file for each of its sections, with its template beside it.

A section is a function of the runs and their looks that gives its figures and rows to a template.
"""
