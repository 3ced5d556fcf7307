"""PopLibs: codelets with their cycles, and the primitives that place them."""
