"""Reading a catalogue."""


def read_titles(path):
    """Return the titles in the file, one a line, empty lines left out."""
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]
