"""What a person looks at: tables, figures, pages and the explorer."""
