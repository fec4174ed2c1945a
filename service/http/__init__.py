"""The wire: FastAPI application, routes, schemas, middleware and connection limits."""
