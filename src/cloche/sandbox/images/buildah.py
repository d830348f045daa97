"""buildah's private storage, in which images are built and whose unpacked layers are used where they lie.

It lies below the state directory, so that one view of the store covers its layers. Every call has a run
root, mount and pid namespace of its own, so that a build that is ended leaves no mount and no process, and
its working containers can be told from those of other builds.

A base image is not copied in: buildah gets an image whose only layer holds a marker with the base's digest,
and that layer's folder is then replaced by a symlink to the layer in our store. Must never publish such an
image (its tag) before the symlink stands.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloche.core.errors import ImageError, InvalidInput
from cloche.sandbox.images.disk import private_folder, read_json
from cloche.sandbox.images.records import Layer, Manifest
from cloche.sandbox.images.tools import run_contained, search_path
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import ImageConfig

TAG = "localhost/cloche"
HOUSEKEEPING_TIMEOUT_S = 120.0
_MARKER = ".cloche-base"
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
# buildah keeps a cache for all users in this folder; ours sees an empty one that is gone with it
_WRAPPER = (
    "mkdir -p /var/lib/containers && mount -t tmpfs -o mode=700,size=64m cloche /var/lib/containers "
    '&& exec "$@"'
)


def reference(digest: str) -> str:
    """Return the name in buildah's storage of an image of our store."""
    return f"{TAG}:{digest.removeprefix('sha256:')}"


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer of buildah's storage: its digest, and its folder relative to the state directory."""

    id: str
    parent: str
    digest: str
    size_bytes: int


class Buildah:
    """One use of buildah, with a work folder that nobody else uses and that goes afterwards."""

    def __init__(self, program: str, settings: Settings, work: Path) -> None:
        self._program = program
        self._state_dir = settings.state_dir
        self.root = private_folder(settings.state_dir / "buildah")
        self.work = work
        self._run_root = work / "run"
        for name in ("run", "tmp", "home", "cni"):
            (work / name).mkdir(mode=0o700, exist_ok=True)
        (work / "storage.conf").write_text('[storage]\ndriver = "overlay"\n')
        (work / "registries.conf").write_text("unqualified-search-registries = []\n")
        (work / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        self.no_ignore = work / "no-ignore"
        self.no_ignore.write_text("")

    async def run(self, *arguments: str, log: Path, timeout_s: float = HOUSEKEEPING_TIMEOUT_S) -> int:
        """Run buildah with both outputs appended to ``log``; return its status. Raises TimeoutError."""
        command = (
            *("sh", "-c", _WRAPPER, "sh", self._program),
            *("--root", str(self.root), "--runroot", str(self._run_root), "--storage-driver", "overlay"),
            *arguments,
        )
        return await run_contained(command, log=log, env=self._environment(), timeout_s=timeout_s)

    async def output(self, *arguments: str) -> str:
        """Run buildah and return what it printed. Raises ImageError when it fails or hangs."""
        out = self.work / "output"
        out.write_text("")
        what = f"buildah {shlex.join(arguments[:2])}"
        try:
            status = await self.run(*arguments, log=out)
        except TimeoutError:
            raise ImageError(f"{what} did not answer in {HOUSEKEEPING_TIMEOUT_S:g} s") from None
        text = out.read_text(errors="replace")
        if status != 0:
            raise ImageError(f"{what} failed: {text.strip()}")
        return text

    def _environment(self) -> dict[str, str]:
        proxies = {
            name: os.environ[name] for word in _PROXIES for name in (word, word.upper()) if name in os.environ
        }
        return {
            "PATH": search_path(),
            "HOME": str(self.work / "home"),
            "TMPDIR": str(self.work / "tmp"),
            "LC_ALL": "C.UTF-8",
            "CONTAINERS_CONF": os.devnull,
            "CONTAINERS_STORAGE_CONF": str(self.work / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.work / "registries.conf"),
            **proxies,
        }

    def build_arguments(self) -> list[str]:
        """Return what every build has: chroot isolation, the host's network, nothing pulled, steps cached."""
        return [
            *("build", "--isolation", "chroot", "--pull-never", "--network", "host"),
            *("--signature-policy", str(self.work / "policy.json")),
            *("--cni-config-dir", str(self.work / "cni"), "--cni-plugin-path", str(self.work / "cni")),
        ]

    # --- base images ---

    def has(self, digest: str) -> bool:
        """Whether the image of our store is known to buildah."""
        wanted = reference(digest)
        return any(wanted in image.get("names", ()) for image in self._images())

    async def add_base(self, manifest: Manifest) -> None:
        """Make an image of our store known to buildah, without copying its layers.

        Each layer gets a marker of its own first; all but the last come from one build without anything else,
        since the configuration makes layers too where steps are layers.
        """
        count = len(manifest.layers)
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            for place in range(count):
                (Path(folder) / f"{_MARKER}-{place}").write_text(f"{manifest.digest} {place}\n")
            start = "scratch"
            if count > 1:
                lines = ["FROM scratch", *(_copy_marker(place) for place in range(count - 1))]
                (Path(folder) / "Dockerfile").write_text("\n".join(lines) + "\n")
                start = await self._build_small(folder, "--layers")
            lines = [f"FROM {start}", _copy_marker(count - 1)]
            (Path(folder) / "Dockerfile").write_text(
                "\n".join(lines) + "\n" + settings_lines(manifest.config)
            )
            made = await self._build_small(folder)
        stored = self.layers(made)
        if len(stored) != count:
            raise ImageError(f"buildah made {len(stored)} layers for the {count} of image {manifest.digest}")
        for layer, ours in zip(stored, manifest.layers, strict=True):
            self._replace(self.root / "overlay" / layer.id / "diff", self._state_dir / ours.path)
        await self.output("tag", made, reference(manifest.digest))

    async def add_workdir(self, identity: str) -> str:
        """Return the id of the same image with its working folder made, as Docker does; needs no shell."""
        with tempfile.TemporaryDirectory(dir=self.work) as folder:
            (Path(folder) / "empty").mkdir()
            (Path(folder) / "Dockerfile").write_text(f"FROM {identity}\nCOPY empty/ ./\n")
            return await self._build_small(folder)

    async def _build_small(self, folder: str, layers: str = "--layers=false") -> str:
        """Build a Dockerfile of ours, in one layer or in one per step; return the image's id."""
        identity = Path(folder) / "id"
        arguments = [*self.build_arguments(), layers, "--timestamp", "0", "--quiet", "--force-rm"]
        await self.output(*arguments, "--iidfile", str(identity), folder)
        return image_id(identity)

    def _replace(self, diff: Path, layer: Path) -> None:
        """Put a symlink to our layer where buildah keeps its own; buildah wants it absolute."""
        if not diff.is_symlink():
            shutil.rmtree(diff)
            diff.symlink_to(layer)

    # --- what was built ---

    def layers(self, identity: str) -> list[StoredLayer]:
        """Return the layers of an image, the lowest first, from the storage's own records."""
        image = next((item for item in self._images() if item["id"] == identity), None)
        if image is None:
            raise ImageError(f"buildah's storage does not know the image {identity} that it just made")
        rows = {row["id"]: row for row in read_json(self.root / "overlay-layers" / "layers.json") or ()}
        found = []
        layer_id = image.get("layer", "")
        while layer_id:
            row = rows[layer_id]
            found.append(
                StoredLayer(layer_id, row.get("parent", ""), row["diff-digest"], row.get("diff-size", 0))
            )
            layer_id = row.get("parent", "")
        return found[::-1]

    def manifest(self, identity: str, config: ImageConfig, known: dict[str, Layer]) -> Manifest:
        """Return the manifest of a built image. ``known`` has our own layers by their path."""
        layers = []
        for stored in self.layers(identity):
            diff = self.root / "overlay" / stored.id / "diff"
            path = os.path.relpath(diff.resolve() if diff.is_symlink() else diff, self._state_dir.resolve())
            built = Layer(digest=stored.digest, path=path, size_bytes=stored.size_bytes)
            layers.append(known.get(path, built))
        return Manifest(layers=tuple(layers), config=config)

    async def config(self, identity: str) -> ImageConfig:
        """Return how the image wants its processes run."""
        inspected = json.loads(await self.output("inspect", "--type", "image", identity))
        return config_from_oci(inspected["OCIv1"].get("config") or {})

    def _images(self) -> list[dict[str, Any]]:
        return read_json(self.root / "overlay-images" / "images.json") or []

    def references(self) -> dict[str, str]:
        """Return our digest → buildah's name of every image of ours that it knows."""
        names = [name for image in self._images() for name in image.get("names") or ()]
        return {
            "sha256:" + name.removeprefix(f"{TAG}:"): name for name in names if name.startswith(f"{TAG}:")
        }

    # --- working containers ---

    def containers(self) -> list[str]:
        """Return the working containers of all builds."""
        rows = read_json(self.root / "overlay-containers" / "containers.json") or []
        return [row["id"] for row in rows]

    def own_containers(self) -> list[str]:
        """Return the working containers that this use of buildah has mounted and not unmounted."""
        mounts = read_json(self._run_root / "overlay-layers" / "mountpoints.json") or []
        mounted = {row["id"] for row in mounts}
        rows = read_json(self.root / "overlay-containers" / "containers.json") or []
        return [row["id"] for row in rows if row["layer"] in mounted]

    async def remove_containers(self, ids: Sequence[str]) -> None:
        """Remove working containers, if there are any."""
        if ids:
            await self.output("rm", *ids)


def image_id(identity: Path) -> str:
    """Return the image's id from the file that ``--iidfile`` made."""
    return identity.read_text().strip().removeprefix("sha256:")


def config_from_oci(config: dict[str, Any]) -> ImageConfig:
    """Read an OCI image configuration (image-spec, config.md)."""
    env = dict(item.partition("=")[::2] for item in config.get("Env") or ())
    return ImageConfig(
        env=env,
        user=config.get("User") or "",
        workdir=os.path.normpath(config.get("WorkingDir") or "/"),
        entrypoint=tuple(config.get("Entrypoint") or ()),
        cmd=tuple(config.get("Cmd") or ()),
    )


def _copy_marker(place: int) -> str:
    return f"COPY {_MARKER}-{place} /{_MARKER}"


def settings_lines(config: ImageConfig) -> str:
    """Return the lines of a Dockerfile that make this configuration, expanding nothing."""
    lines = [f"ENV {name}={_quoted(value)}" for name, value in config.env.items()]
    if config.user:
        lines.append(f"USER {_quoted(config.user)}")
    if config.workdir not in {"", "/"}:
        lines.append(f"WORKDIR {_quoted(config.workdir)}")
    if config.entrypoint:
        lines.append(f"ENTRYPOINT {json.dumps(config.entrypoint)}")
    if config.cmd:
        lines.append(f"CMD {json.dumps(config.cmd)}")
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    if "\n" in value:
        raise InvalidInput(f"a Dockerfile cannot hold the line break in {value!r}")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'
