"""Policies: networks, distributions over actions, the tiles they run on and the noise they sample with."""
