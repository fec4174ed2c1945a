"""HTTP: the application, the routes of tasks, other servers' APIs, middleware and connection limits."""
