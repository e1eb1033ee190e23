"""Two captures of a job held against each other: what changed, and what cannot be told apart."""
