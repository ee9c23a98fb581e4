"""Rollouts as files for other tools: Parquet and Minari."""
