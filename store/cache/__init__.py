"""Locates what is kept in the user's cache, and recognizes mirrors of stores there."""
