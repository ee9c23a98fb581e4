"""What a rollout looks like in memory, and who owns each block. Knows no environment, no policy, no torch."""
