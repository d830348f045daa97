"""Compare the site with one made here from the verifier's own copy of the notes."""

import hashlib
import os
import sys

NOTES = {
    "a/deep/well": "The well\n",
    "lists/shopping": 'Shopping\nSeeds\nTwine\n\n"A can"\n',
    "robin": "The robin\nIt came back <today> & sang.\n",
}
FOLDERS = ["a/cache", "a/deep/cache", "cache", "lists/cache"]
SITE = "/app/site"


def escaped(text):
    """Return a text as it stands in a page."""
    for plain, code in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(plain, code)
    return text


def expected():
    """Return {path: content} of the site."""
    files, index = {}, ""
    for path, note in NOTES.items():
        title, *lines = map(escaped, note.splitlines())
        files[f"{path}.html"] = f"<h1>{title}</h1>\n" + "".join(f"<p>{line}</p>\n" for line in lines if line)
        files[f"{path}.tmp"] = note
        index += f'<a href="{path}.html">{title}</a>\n'
    files["index.html"], files["index.tmp"] = index, "".join(f"{path}.html\n" for path in NOTES)
    for path in [*NOTES, "index"]:
        folder, name = os.path.split(f"{path}.html")
        digest = hashlib.sha256(files[f"{path}.html"].encode()).hexdigest()
        files[os.path.join(folder, "cache", name)] = f"{digest}\n"
    return files


def read(path):
    """Return a file's text, None if it is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def problems():
    """Yield what is wrong."""
    files = expected()
    present = {
        os.path.relpath(os.path.join(folder, name), SITE)
        for folder, _, names in os.walk(SITE)
        for name in names
    }
    yield from (f"{path} does not belong there" for path in sorted(present - set(files)))
    yield from (
        f"{path} is missing or wrong" for path in files if read(os.path.join(SITE, path)) != files[path]
    )
    yield from (f"{path} is missing" for path in FOLDERS if not os.path.isdir(os.path.join(SITE, path)))
    if read("/app/out/report.txt") != f"{len(NOTES)}\n":
        yield "the report is wrong"
    if not read("/app/build.log"):
        yield "build.log is missing"
    if read("/logs/artifacts/extra/seen.txt") != "seen\n":
        yield "seen.txt is wrong"


found = list(problems())
print("\n".join(found) or "the pages are right")
sys.exit(bool(found))
