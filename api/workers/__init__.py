"""Work in processes of its own: SQL, jobs, trials of rules, and the first reading of a large store."""
