"""Kubernetes objects: from the API server through one small client, or from dumps and bundles."""
