"""The pictures of docs/claims.md: SVG files that stand by themselves, on light and dark pages."""
