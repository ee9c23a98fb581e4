"""Environments: how they are named, made, seeded and stepped. Knows no policy and no learner."""
