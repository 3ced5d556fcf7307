"""poputil: placing, copying and reshaping tensors."""
