"""Reads stores in object storage: manifests and parts in a bucket, mirrored into the user's cache."""
