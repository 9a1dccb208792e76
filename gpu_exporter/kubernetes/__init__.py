"""The Kubernetes API: a client, and watches."""
