"""poplin: contractions."""
