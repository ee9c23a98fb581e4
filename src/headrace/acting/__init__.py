"""The loop that fills slabs. It knows a vector env, an `act` function and a slab; nothing of learning or processes."""
