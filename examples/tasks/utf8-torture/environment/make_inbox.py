"""Make the inbox in the folder given. Names are bytes: not all of them are text."""

import os
import sys

FILES = {
    "Ελλάδα.txt".encode(): "Θάλασσα\n".encode(),
    b"\xc3\xa9t\xc3\xa9.txt": "composed: \u00e9t\u00e9\n".encode(),
    b"e\xcc\x81te\xcc\x81.txt": "decomposed: e\u0301te\u0301\n".encode(),
    "שלום.txt".encode(): "\u200fשלום\u200e, world\n".encode(),
    "\u202egpj.exe".encode(): b"MZ\x90\x00 not a picture\n",
    "👩🏽‍🌾.txt".encode(): "👩🏽‍🌾 + 👨‍👩‍👧‍👦 = 🌱\n".encode(),
    "🇮🇸🇲🇽".encode(): "🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f\n".encode(),
    b"latin-1 caf\xe9.txt": b"caf\xe9\n",
    b"\xff\xfe\x80": b"\x80\x81\xfe\xff",
    b"shift-jis \x93\xfa\x96{.txt": b"\x93\xfa\x96{",
    b" leading and trailing ": "a\u00a0b\u2003c\u3000d".encode(),
    b"-rf": b"-n\n",
    b"*": b"*.txt\n",
    b"new\nline.txt": b"one\r\ntwo\rthree\n",
    b"tab\tand\x1b[31mred": b"\x1b[0m\x07\n",
    b"quote'\"`$(id).txt": b"$(id)\n",
    b".hidden": b"",
    b"Z\xcd\xa5\xcd\xab\xcc\xb8a\xcc\x95\xcd\x81lgo": ("Z" + "\u0301\u0316\u0338" * 40 + "\n").encode(),
    "深い/層/🪺/\u0130\u0131".encode(): "İıſß\ufb03\n".encode(),
    b"deep/\xf0\x28\x8c\x28/x": b"\xed\xa0\x80\n",
    b"deep/overlong": b"\xc0\xaf\n",
    b"deep/beyond": b"\xf4\x90\x80\x80\n",
    b"deep/last": "\U0010ffff\ufffe\u0000\n".encode(),
    b"deep/cut": "ends in the middle of 🌱".encode()[:-1],
    b"bom": b"\xef\xbb\xbfwith a mark\n",
    b"utf-16": "wide\n".encode("utf-16-le"),
    b"\xe2\x80\x8b": "\u200b\u2060\ufeff".encode(),
}
LINKS = {b"link": b"bom", b"deep/up": b"..", b"nowhere": "🚫".encode()}


def main():
    """Write the files and the links."""
    root = os.fsencode(sys.argv[1])
    for name, content in FILES.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)
    for name, target in LINKS.items():
        os.symlink(target, os.path.join(root, name))


main()
