"""Weights as one flat vector, versioned: the learner publishes, actors and the completion pass load."""
