"""The command line: one small file a command, no logic. Each is imported only when it is called."""
