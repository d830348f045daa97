"""Write the manifest, in bytes from beginning to end."""

import hashlib
import os
import stat

ROOT = b"/app/inbox"

lines = []
for folder, _, names in os.walk(ROOT):
    for name in names:
        path = os.path.join(folder, name)
        if not stat.S_ISREG(os.lstat(path).st_mode):
            continue
        with open(path, "rb") as file:
            data = file.read()
        try:
            points = str(len(data.decode("utf-8")))
        except UnicodeDecodeError:
            points = "-"
        digest = hashlib.sha256(data).hexdigest()
        lines.append(f"{os.path.relpath(path, ROOT).hex()}\t{len(data)}\t{points}\t{digest}\n")
with open("/app/manifest.tsv", "w", encoding="ascii") as file:
    file.writelines(sorted(lines))
