"""Facts from Kubernetes objects, events and pod logs."""
