"""Runs the server's child processes and their parent side: SQL queries, rule trials, jobs, and preloading of runs."""
