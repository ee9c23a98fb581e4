"""The points of the reliability bar, a file per group; each point is a function from a Scale to a Shown."""
