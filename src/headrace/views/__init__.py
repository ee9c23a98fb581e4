"""What a person sees of a run: the terminal while it runs, the report when it is over. Views read, never write back."""
