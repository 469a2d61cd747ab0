"""`headwise analyse`: what the heads of finished runs do on one part of their data."""

PAGE, RECORD = "analysis.html", "analysis.json"
PROGRESS = "analysis"  # the folder in which finished ablations are kept
