"""The pages for people, rendered from templates."""
