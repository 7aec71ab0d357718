"""The server's child processes, each with its parent's side: SQL, trials of rules, jobs, and preloading a store."""
