"""Checkpoints: a run's whole state on disk. safetensors and JSON with a hash each; no pickle."""
