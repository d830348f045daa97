"""Compare every page that the program prints with what its README promises."""

import os
import subprocess
import sys
import tempfile

CASES = [(0, 10), (1, 1), (3, 1), (9, 10), (10, 10), (11, 10), (20, 10), (25, 10), (12, 4), (13, 4), (7, 100)]


def shelf(path, size, page):
    """Run the program and return its exit status and standard output."""
    done = subprocess.run(
        ["python3", "-m", "shelf", path, "--size", str(size), "--page", str(page)],
        cwd="/app",
        capture_output=True,
        text=True,
        timeout=20,
    )
    return done.returncode, done.stdout


def expected_pages(titles, size):
    """Return the text of every page, reckoned book by book."""
    pages = [[]]
    for number, title in enumerate(titles, 1):
        if len(pages[-1]) == size:
            pages.append([])
        pages[-1].append((number, title))
    texts = []
    for index, page in enumerate(pages, 1):
        lines = [f"{number:4}. {title}" for number, title in page]
        if page:
            lines.append(f"page {index} of {len(pages)}, books {page[0][0]}-{page[-1][0]} of {len(titles)}")
        else:
            lines.append("page 1 of 1, no books")
        texts.append("\n".join(lines) + "\n")
    return texts


def problems(folder):
    """Yield a line for each page that is not as it should be."""
    for total, size in CASES:
        titles = [f"Volume {chr(65 + number % 26)}{number * 7919 % 1000}" for number in range(total)]
        path = os.path.join(folder, f"{total}-{size}.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n\n".join(titles) + "\n")
        pages = expected_pages(titles, size)
        for index, text in enumerate(pages, 1):
            if shelf(path, size, index) != (0, text):
                yield f"{total} books, {size} to a page: page {index} is wrong"
        for beyond in (0, len(pages) + 1):
            if shelf(path, size, beyond) != (2, ""):
                yield f"{total} books, {size} to a page: page {beyond} is not refused"


with tempfile.TemporaryDirectory() as scratch:
    found = list(problems(scratch))
print("\n".join(found) or "every page is right")
sys.exit(bool(found))
