"""Write auth.log and access.log into the folder given: the same bytes every time.

The story is planted line by line; a fixed sequence of pseudo-random numbers adds the noise around it.
"""

import os
import sys
from datetime import UTC, datetime, timedelta, timezone

START = datetime(2026, 3, 13, 18, 0, tzinfo=UTC)
LOCAL = timezone(timedelta(hours=1))
INTRUDER = "203.0.113.77"
FRIEND = "198.51.100.204"  # where the intruder fetches from
SCANNER = "192.0.2.15"  # louder than the intruder, never lucky
GUESSES = ["root", "admin", "oracle", "test", "git", "deploy", "backup", "pi"]
PAGES = ["/", "/index.html", "/about", "/style.css", "/logo.svg", "/feed.xml", "/contact", "/robots.txt"]


class Noise:
    """Numbers that look random and are the same everywhere (the classic 31-bit generator)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, limit):
        """Return a number from 0 to ``limit`` - 1."""
        self.state = (self.state * 1103515245 + 12345) % 2**31
        return (self.state >> 8) % limit

    def choose(self, items):
        """Return one of the items."""
        return items[self.below(len(items))]


def auth_line(when, program, text):
    """Return (time, line) of the log of log-ins."""
    return when, f"{when:%Y-%m-%dT%H:%M:%SZ} gate {program}: {text}"


def failed(noise, when, user, address):
    """A wrong password."""
    known = "" if user in {"root", "deploy", "backup", "mira"} else "invalid user "
    text = f"Failed password for {known}{user} from {address} port {30000 + noise.below(30000)} ssh2"
    return auth_line(when, f"sshd[{2000 + noise.below(7000)}]", text)


def accepted(noise, when, user, address, method="password"):
    """A log-in."""
    text = f"Accepted {method} for {user} from {address} port {30000 + noise.below(30000)} ssh2"
    return auth_line(when, f"sshd[{2000 + noise.below(7000)}]", text)


def auth_lines(noise):
    """Yield everything that the log of log-ins holds, in any order."""
    at = lambda minutes, seconds=0: START + timedelta(minutes=minutes, seconds=seconds)  # noqa: E731
    for count in range(412):
        yield failed(noise, at(count * 2, noise.below(60)), noise.choose(GUESSES), SCANNER)
    for count in range(137):  # the last guess comes at 05:01:xx, a minute before the log-in
        user = "backup" if count % 3 == 1 else noise.choose(GUESSES)
        yield failed(noise, at(525 + count, noise.below(60)), user, INTRUDER)
    yield accepted(noise, at(662, 41), "backup", INTRUDER)
    for count in range(9):  # guesses that go on after the log-in do not count
        yield failed(noise, at(664 + count, noise.below(60)), noise.choose(GUESSES), INTRUDER)
    yield accepted(noise, at(689, 5), "backup", INTRUDER)
    for count in range(3):  # somebody of our own who mistypes
        yield failed(noise, at(731, count * 7), "mira", "10.0.4.21")
    yield accepted(noise, at(731, 30), "mira", "10.0.4.21")
    for count in range(60):
        yield accepted(noise, at(count * 15, noise.below(60)), "deploy", "10.0.0.7", "publickey")
    sudo = "backup : TTY=pts/2 ; PWD=/home/backup ; USER=root ; COMMAND="
    archive = "/var/www/html/assets/.fonts-3.tgz"
    yield auth_line(at(691, 12), "sudo", f"{sudo}/usr/bin/tar -czf {archive} /srv/ledger")
    yield auth_line(at(693, 2), "sudo", f"{sudo}/usr/bin/chmod 644 {archive}")
    nightly = "backup : TTY=unknown ; PWD=/ ; USER=root ; COMMAND="
    yield auth_line(at(450), "sudo", nightly + "/usr/bin/tar -czf /var/www/html/pub/site-copy.tgz /srv/site")


def web_line(when, address, path, status, size, agent="Mozilla/5.0"):
    """Return (time, line) of the web server's log."""
    stamp = when.astimezone(LOCAL).strftime("%d/%b/%Y:%H:%M:%S %z")
    return when, f'{address} - - [{stamp}] "GET {path} HTTP/1.1" {status} {size} "-" "{agent}"'


def web_lines(noise):
    """Yield everything that the web server's log holds, in any order."""
    for _ in range(1800):
        address = f"198.51.100.{1 + noise.below(180)}"
        when = START + timedelta(seconds=noise.below(54000))
        yield web_line(when, address, noise.choose(PAGES), 200, 400 + noise.below(9000))
    for count in range(5):
        when = START + timedelta(minutes=455 + count * 40)
        yield web_line(when, "10.0.0.7", "/pub/site-copy.tgz", 200, 7340032, "curl/7.88")
    archive = "/assets/.fonts-3.tgz"
    story = [
        (690, FRIEND, 404, 153),
        (692, FRIEND, 403, 153),
        (694, FRIEND, 200, 18874368),
        (701, FRIEND, 200, 18874368),
        (703, "198.51.100.61", 200, 18874368),
        (704, FRIEND, 206, 1048576),
        (760, "10.0.4.21", 404, 153),
    ]
    for minutes, address, status, size in story:
        when = START + timedelta(minutes=minutes, seconds=noise.below(60))
        yield web_line(when, address, archive, status, size, "Wget/1.21")


def main():
    """Write both files, lines in order of time."""
    noise = Noise(20260313)
    for name, lines in (("auth.log", auth_lines(noise)), ("access.log", web_lines(noise))):
        with open(os.path.join(sys.argv[1], name), "w", encoding="ascii") as file:
            file.writelines(line + "\n" for _, line in sorted(lines))


main()
