"""The tasks that are served: requests, results and the way from one to the other, a file each. Knows no HTTP."""
