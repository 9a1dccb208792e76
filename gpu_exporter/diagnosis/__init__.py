"""Why a GPU is slow or unhealthy."""
