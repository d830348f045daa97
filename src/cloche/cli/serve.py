"""``cloche serve``: the environment service over HTTP.

Must never listen beyond this machine without a key.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloche.cli.common import run_async
from cloche.core.errors import InvalidInput

if TYPE_CHECKING:
    import ssl

    from cloche.server.run import Running


@click.command()
@click.option("--listen", default="127.0.0.1:7070", show_default=True, metavar="HOST:PORT", help="Where.")
@click.option("--unix", type=click.Path(path_type=Path), help="A unix socket instead of a port.")
@click.option(
    "--keys", type=click.Path(path_type=Path), help="The file of keys (default: the state folder's)."
)
@click.option("--tls-cert", type=click.Path(exists=True, path_type=Path), help="Certificate chain, PEM.")
@click.option("--tls-key", type=click.Path(exists=True, path_type=Path), help="Its private key, PEM.")
@click.option("--starts", type=click.IntRange(min=1), default=32, show_default=True, help="Starts at once.")
def serve(
    listen: str,
    unix: Path | None,
    keys: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    starts: int,
) -> None:
    """Serve sandboxes over HTTP until SIGTERM; what lives then is found again by the next start."""
    from cloche.sandbox.drivers.local import LocalDriver
    from cloche.sandbox.images.resolve import StoreResolver
    from cloche.sandbox.settings import Settings
    from cloche.server.run import Listen, log_to_stderr, serve_until_told
    from cloche.server.settings import ServerSettings
    from cloche.service.pending import Pending
    from cloche.service.service import SandboxService
    from cloche.service.settings import ServiceSettings

    here = Settings()
    settings = ServerSettings(state_dir=here.state_dir / "server", keys=keys)
    host, port = _host_port(listen)
    place = Listen(host=None if unix else host, port=port, unix=unix, tls=_tls(tls_cert, tls_key))
    log_to_stderr()

    async def run() -> None:
        driver = LocalDriver(here)
        try:
            service = SandboxService(
                driver,
                StoreResolver(here),
                ServiceSettings(starts=starts),
                pending=Pending(here.run_dir),
            )
            await serve_until_told(service, settings, place, _announce)
        finally:
            await driver.close()

    run_async(run())


def _announce(running: Running) -> None:
    for address in running.addresses:
        click.echo(f"cloche serves at {address}")
    address = running.addresses[-1]
    if address.startswith("unix:"):
        click.echo(f"try: curl --unix-socket {address[5:]} http://localhost/readyz")
    else:
        click.echo(f"try: CLOCHE_URL={address} cloche sandbox ls")


def _host_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput(f"{text!r} is not HOST:PORT", hint="--listen 127.0.0.1:7070")
    return host.strip("[]") or "127.0.0.1", int(port)


def _tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidInput("TLS needs a certificate and its key", hint="--tls-cert FILE --tls-key FILE")
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (ssl.SSLError, OSError) as error:
        raise InvalidInput(f"{cert} and {key} are no certificate and key: {error}") from error
    return context
