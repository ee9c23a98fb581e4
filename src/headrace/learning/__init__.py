"""From slabs to the next version of the weights."""
