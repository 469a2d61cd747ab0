"""All that a person looks at: tables, figures and pages, made of the records of `analysis`."""
