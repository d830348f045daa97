"""List the books of a catalogue page by page."""
