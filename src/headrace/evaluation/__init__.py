"""Playing without learning: evaluation, and finding out what can be guaranteed for an environment."""
