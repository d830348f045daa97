"""The SDK's way to a service over HTTP: docs/api.md."""
