"""popops: elementwise expressions and reductions."""
