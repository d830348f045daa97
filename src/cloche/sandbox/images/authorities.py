"""Certificate authorities that this machine trusts and Debian does not ship.

They exist where mirrors or proxies have certificates of their own (a company's, a test network's): then
``pip`` and ``npm`` inside an image can only work with them. Must never take a private key.
"""

from __future__ import annotations

import re
from pathlib import Path

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
SHIPPED = Path("/usr/share/ca-certificates")
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)

# what the tools of the languages read; they do not look at the system's bundle by themselves
ENVIRONMENT = {
    name: str(BUNDLE) for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
}


def certificates(text: str) -> list[str]:
    """Return the certificates of a PEM text, each in one normal form, in order and once."""
    bodies = ("".join(body.split()) for body in _BLOCK.findall(text))
    return list(dict.fromkeys(bodies))


def as_pem(body: str) -> str:
    """Return the PEM text of one of ``certificates``."""
    lines = [body[start : start + 64] for start in range(0, len(body), 64)]
    return "\n".join(("-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""))


def extra(bundle: Path = BUNDLE, shipped: Path = SHIPPED) -> list[str]:
    """Return the certificates of the machine's bundle that Debian's package does not ship, in PEM."""
    if not bundle.is_file():
        return []
    known = {
        body for path in shipped.rglob("*.crt") for body in certificates(path.read_text(errors="replace"))
    }
    found = certificates(bundle.read_text(errors="replace"))
    return [as_pem(body) for body in found if body not in known]
