"""Processes, and what happens to them. Knows no reinforcement learning."""
