"""Check /app/answers.txt; says which answers are wrong, never what is right."""

import sys

ANSWERS = {
    "ip": "203.0.113.77",
    "account": "backup",
    "failures": "137",
    "login": "2026-03-14T05:02:41Z",
    "url": "/assets/.fonts-3.tgz",
    "bytes": str(3 * 18874368),
}

try:
    with open("/app/answers.txt", encoding="utf-8") as file:
        lines = file.read().splitlines()
except (OSError, UnicodeDecodeError) as error:
    sys.exit(f"/app/answers.txt cannot be read: {error}")
expected = [f"{key}={value}" for key, value in ANSWERS.items()]
if len(lines) != len(expected):
    sys.exit(f"{len(lines)} lines instead of {len(expected)}")
wrong = [right.partition("=")[0] for given, right in zip(lines, expected) if given.strip() != right]
print("wrong:", *wrong) if wrong else print("all answers are right")
sys.exit(bool(wrong))
