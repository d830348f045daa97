"""Which certificate authorities a machine has beyond those that Debian ships."""

from __future__ import annotations

from pathlib import Path

from cloche.sandbox.images import authorities


def _pem(body: str, width: int = 64) -> str:
    lines = "\n".join(body[start : start + width] for start in range(0, len(body), width))
    return f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n"


SHIPPED, OWN, OTHER = "A" * 100, "B" * 100, "C" * 10


def test_only_what_debian_does_not_ship_is_extra(tmp_path: Path) -> None:
    shipped = tmp_path / "shipped" / "mozilla"
    shipped.mkdir(parents=True)
    (shipped / "one.crt").write_text(_pem(SHIPPED, width=76))
    bundle = tmp_path / "bundle.crt"
    bundle.write_text(_pem(SHIPPED) + "# ours\n" + _pem(OWN) + _pem(OWN) + _pem(OTHER))
    found = authorities.extra(bundle, tmp_path / "shipped")
    assert found == [_pem(OWN), _pem(OTHER)]


def test_a_machine_without_a_bundle_has_none(tmp_path: Path) -> None:
    assert authorities.extra(tmp_path / "none", tmp_path) == []


def test_a_private_key_beside_the_certificates_is_never_taken(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.crt"
    bundle.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n" + _pem(OWN))
    assert authorities.extra(bundle, tmp_path / "none") == [_pem(OWN)]


def test_the_tools_that_have_bundles_of_their_own_are_pointed_to_the_systems() -> None:
    assert set(authorities.ENVIRONMENT) == {
        "PIP_CERT",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    }
