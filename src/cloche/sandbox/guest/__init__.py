"""The client of the guest, the small program inside every sandbox. The protocol: docs/protocol.md."""
