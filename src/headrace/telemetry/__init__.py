"""What a run tells about itself: timing, and the sinks that keep its records. Knows no RL."""
