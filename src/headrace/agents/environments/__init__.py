"""Text environments: a contract, five that are shipped, and adapters for those that users have."""
