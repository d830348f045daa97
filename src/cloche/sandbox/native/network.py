"""Networks of an installation: its addresses, and the rules by which the kernel judges sandboxes' packets.

A sandbox reaches what its policy opens (``net.sets``), the members of its unit, and our name server at its
gateway's address; never the host, private networks, other sandboxes or metadata services, and nothing by
IPv6. A sandbox of which the sets know nothing reaches nothing. The documentation ranges of RFC 5737 are not
blocked: some networks route them. Must never change the host: the spawner loads the rules.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from string import Template

from cloche.core.errors import EnvironmentUnusable, InvalidInput
from cloche.sandbox.allow import NAME_PORTS, Entry, parse_entries
from cloche.sandbox.native.net import sets
from cloche.sandbox.settings import Settings

DEFAULT_POOL = "10.210.0.0/16"
_GATEWAYS = 254
_LOG_GROUPS = 65_000
_RULES = Path(__file__).with_name("rules.nft")
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")

BLOCKED = (
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",  # private, RFC 1918
    "100.64.0.0/10",  # carrier-grade NAT, RFC 6598
    "127.0.0.0/8",  # loopback
    "169.254.0.0/16",  # link-local, cloud metadata
    "172.16.0.0/12",  # private, RFC 1918
    "192.0.0.0/24",  # IETF protocol assignments, RFC 6890 (cloud metadata too)
    "192.168.0.0/16",  # private, RFC 1918
    "198.18.0.0/15",  # benchmarking, RFC 2544
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, broadcast
)


@dataclass(frozen=True, slots=True)
class Private:
    """Blocked addresses that a policy may open: a network and its ports, first and last."""

    network: ipaddress.IPv4Network
    ports: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """Addresses of one installation: ``gateway`` is on every host end, sandboxes start at the 256th.

    ``log_group`` is where the kernel tells of refused packets. ``exceptions`` are the operator's: blocked
    addresses that a policy may open all the same.
    """

    pool: ipaddress.IPv4Network
    gateway: ipaddress.IPv4Address
    links: str
    table: str
    log_group: int
    exceptions: tuple[Private, ...] = ()


def plan(settings: Settings) -> Plan:
    """Return the addresses of this installation. Raises InvalidInput for a pool that cannot be."""
    text = os.environ.get("CLOCHE_NETWORK_POOL") or DEFAULT_POOL
    try:
        pool = ipaddress.IPv4Network(text)
    except ValueError as error:
        raise InvalidInput(f"CLOCHE_NETWORK_POOL: {error}", hint=f"for example {DEFAULT_POOL}") from error
    if not 8 <= pool.prefixlen <= 22:
        raise InvalidInput(f"CLOCHE_NETWORK_POOL: {text} must have between /8 and /22 addresses")
    offset = 1 + int(settings.instance, 16) % _GATEWAYS
    return Plan(
        pool,
        pool[offset],
        f"cl{settings.instance[:4]}x",
        f"cloche_{settings.instance}",
        1 + int(settings.instance, 16) % _LOG_GROUPS,
        allow_private(os.environ.get("CLOCHE_ALLOW_PRIVATE", "")),
    )


def allow_private(text: str) -> tuple[Private, ...]:
    """Read ``CIDR:port`` entries, parted by commas or blanks. Raises InvalidInput for one without a port."""
    found = []
    for entry in parse_entries(text.replace(",", " ").split()):
        if not isinstance(entry.network, ipaddress.IPv4Network) or entry.ports is None:
            raise InvalidInput(
                f"CLOCHE_ALLOW_PRIVATE: `{entry.text}` is no IPv4 network with a port",
                hint="for example 10.1.2.0/24:3128",
            )
        found.append(Private(entry.network, entry.ports))
    return tuple(found)


def _exceptions(addresses: Plan) -> str:
    """Return the elements of the set; joined, for intervals may not overlap."""
    entries = [Entry(text="", network=each.network, ports=each.ports) for each in addresses.exceptions]
    parts = sets.disjoint_intervals(entries)
    elements = ", ".join(f"{network} . {low}-{high}" for network, low, high in parts)
    return f"elements = {{ {elements} }}" if elements else ""


def rules(addresses: Plan) -> str:
    """Return the rules for ``nft -f``. Loaded again they change the rules and keep what is in the sets.

    A packet must come in by the link that its source address is routed to (``fib``), so no sandbox can borrow
    another's address. A connection goes on while it has the mark of the policy that its sandbox has now; one
    of an earlier policy is judged again, in both directions, and cut when it would not be opened today. Marks
    of packets are ours only between these rules: they leave without one.
    """
    return Template(_RULES.read_text()).substitute(
        table=addresses.table,
        links=addresses.links,
        pool=addresses.pool,
        gateway=addresses.gateway,
        log_group=addresses.log_group,
        blocked=", ".join(BLOCKED),
        exceptions=_exceptions(addresses),
        name_ports=", ".join(map(str, NAME_PORTS)),
    )


def rules_file(settings: Settings) -> Path:
    """Return where the rules are kept for the spawner."""
    return settings.run_dir / "network.nft"


def write_rules(settings: Settings) -> None:
    """Write the rules of this installation."""
    rules_file(settings).write_text(rules(plan(settings)))


def spawner_arguments(settings: Settings) -> list[str]:
    """Return what the spawner needs to know of the network."""
    addresses = plan(settings)
    return [
        f"--nft-file={rules_file(settings)}",
        f"--pool={int(addresses.pool.network_address)}/{addresses.pool.prefixlen}",
        f"--gateway={int(addresses.gateway)}",
    ]


def resolver_arguments(settings: Settings) -> list[str]:
    """Return the arguments of the name server."""
    addresses = plan(settings)
    return [
        f"--listen={addresses.gateway}",
        f"--log={settings.run_dir / 'names.jsonl'}",
        f"--links={addresses.links}",
        f"--lock={settings.run_dir / 'spawner.lock'}",
        f"--sandboxes={settings.sandboxes_dir}",
        f"--table={addresses.table}",
        f"--log-group={addresses.log_group}",
        *(
            f"--upstream={server}"
            for server in os.environ.get("CLOCHE_NAME_SERVERS", "").split(",")
            if server
        ),
        *(f"--private={each.network}:{each.ports[0]}-{each.ports[1]}" for each in addresses.exceptions),
    ]


def check_public() -> None:
    """Raise EnvironmentUnusable when this host does not forward packets."""
    if _IP_FORWARD.read_text().strip() != "1":
        raise EnvironmentUnusable(
            "networks need net.ipv4.ip_forward, which is off on this machine",
            hint="cloche doctor --fix",
        )
