"""Text environments: a contract, four that are shipped, and adapters for those that users have."""
