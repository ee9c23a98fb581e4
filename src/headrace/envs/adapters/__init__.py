"""One file per foreign kind of environment. The only place that reads a foreign library's conventions."""
