"""From environments to batches: hosts fill slabs where the topology puts them, the reader lends them to a learner."""
