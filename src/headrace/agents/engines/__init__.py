"""Engines: token ids in, token ids and log-probabilities out. One small protocol, several makers of tokens."""
