"""Episodes: how they run through slabs, their statistics, and the journal that can bring them back."""
