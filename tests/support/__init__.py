"""What tests of several rooms share: a scripted environment, slow oracles, hypothesis strategies, slabs on the heap."""
