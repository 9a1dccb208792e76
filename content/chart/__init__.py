"""The rendered files of the Helm chart."""
