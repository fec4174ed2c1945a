"""The tasks that are served, a file each: requests, results and the way from one to the other. Knows no HTTP."""
