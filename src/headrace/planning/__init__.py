"""How many actors feed one learner, what travels between them, and what it costs: arithmetic on measured numbers."""
