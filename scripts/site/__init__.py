"""What the documentation site has beyond the pages in docs/."""
