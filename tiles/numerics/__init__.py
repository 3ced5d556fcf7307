"""Values: element types and their words, tolerances, and exact ring arithmetic. Knows nothing of tiles."""
