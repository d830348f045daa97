"""Building Dockerfiles with buildah: once per content, however many callers ask at once.

The key of a build is the digest of the Dockerfile, of what the context shows, of the base images and of the
build arguments. One lock file per key makes one caller build and the others wait for the result, in this
process and in others. Must never leave a process, a mount or a working container of a build that failed, was
cancelled or took too long.

``RUN`` steps run as the host's root in a chroot with the host's network: build only what you would run.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloche.core.errors import ImageError, InvalidInput, NotFound, UsageError
from cloche.sandbox.images import names
from cloche.sandbox.images.buildah import Buildah, image_id, reference
from cloche.sandbox.images.context import IgnoreRules, context_digest, ignore_file
from cloche.sandbox.images.digest import walk
from cloche.sandbox.images.disk import private_folder, read_json, try_locked, waiting_lock, write_json
from cloche.sandbox.images.dockerfile import BaseImage, base_images, instructions
from cloche.sandbox.images.logs import failure, last_lines, new_log
from cloche.sandbox.images.policy import ImagePolicy
from cloche.sandbox.images.records import Layer, Manifest, NameRecord
from cloche.sandbox.images.registry.pull import pull
from cloche.sandbox.images.registry.reference import RegistrySettings, find_registry
from cloche.sandbox.images.store import ImageStore
from cloche.sandbox.images.tools import require, to_the_end, tool_status
from cloche.sandbox.images.tree import FULL_DISK_HINT, SANDBOX_IDS
from cloche.sandbox.spec import PreparedImage

RECIPE = 1  # raise it when the way of building changes what comes out
DEFAULT_TIMEOUT_S = 1800.0
LAYERS_MAX = 500
LAYERS_MAX_OLD_KERNEL = 14
_MAKES_A_LAYER = frozenset({"RUN", "COPY", "ADD", "WORKDIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Everything that decides what comes out of a build. ``bases`` has name as written → image.

    ``steps`` is how many layers the build makes at most if each step makes one.
    """

    context: Path
    dockerfile: Path
    ignore: Path | None
    content: Mapping[str, str]
    bases: Mapping[str, NameRecord]
    build_args: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0

    @property
    def key(self) -> str:
        """Return 32 hexadecimal digits that change with anything of it."""
        bases = {name: record.digest for name, record in self.bases.items()}
        text = json.dumps([RECIPE, dict(self.content), bases, dict(self.build_args)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def details(self) -> dict[str, Any]:
        """Return what the record says; values of build arguments may be secrets and stay out."""
        bases = {
            name: {"name": record.name, "digest": record.digest, "origin": record.origin}
            for name, record in self.bases.items()
        }
        return {"build": self.key, "bases": bases, "build_args": sorted(self.build_args)}


async def build(
    store: ImageStore,
    context: Path,
    dockerfile: Path | None = None,
    *,
    name: str | None = None,
    build_args: Mapping[str, str] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    say: Callable[[str], None] = lambda _: None,
    policy: ImagePolicy | None = None,
) -> PreparedImage:
    """Build ``dockerfile`` (default ``context/Dockerfile``), or return what the same content gave before.

    Bases that are not here and name a registry are pulled first; ``policy`` (default: the environment's) says
    which bases may be used, else UsageError is raised with the line.
    ``name`` defaults to ``build:`` and the build's key; ``say`` gets a line when building begins. Raises
    InvalidInput for what cannot be read, EnvironmentUnusable without root or buildah, and ImageError: a base
    image that is not here (named), a step that fails or a time-out (the end of the log is shown, all of it
    is kept at the error's ``where``).
    """
    policy = policy or ImagePolicy.from_environment()
    await _pull_bases(
        store, dockerfile or context / "Dockerfile", build_args or {}, timeout_s, say=say, policy=policy
    )
    asked_at = time.time_ns()
    plan = await asyncio.to_thread(plan_build, store, context, dockerfile, build_args or {})
    wanted = names.normalise(name or f"build:{plan.key}")
    builds = private_folder(store.root / "builds")
    found = await asyncio.to_thread(_built, store, plan, wanted)
    if found is not None:
        return found
    program = require("buildah", f"building {plan.dockerfile.name}")
    store.make_folders()
    async with waiting_lock(store.root / "locks" / f"build-{plan.key}"):
        found = await asyncio.to_thread(_built, store, plan, wanted)
        if found is not None:
            return found
        failed = builds / f"{plan.key}.failed"
        _raise_shared_failure(failed, asked_at)
        try:
            with store.full_disk_is_said():
                log = new_log(store.root, "build")
                say(f"building {plan.dockerfile}; log: {log}")
                await _build(store, program, plan, wanted, log=log, timeout_s=timeout_s)
        except ImageError as error:
            report = {"message": error.message, "hint": error.hint, "where": error.where}
            write_json(failed, {"at": time.time_ns(), **report})
            raise
        failed.unlink(missing_ok=True)
        return await asyncio.to_thread(store.resolve, wanted)


async def _pull_bases(
    store: ImageStore,
    dockerfile: Path,
    build_args: Mapping[str, str],
    timeout_s: float,
    *,
    say: Callable[[str], None],
    policy: ImagePolicy,
) -> None:
    """Pull the bases that are not here and belong to a registry; the others are the plan's to complain of."""
    settings = RegistrySettings.from_environment()
    for base in await asyncio.to_thread(_bases, dockerfile, build_args):
        _check(policy, base, dockerfile)
        if await asyncio.to_thread(_is_elsewhere, store, base.name, settings):
            try:
                await pull(store, base.name, if_missing=True, timeout_s=timeout_s, settings=settings, say=say)
            except ImageError as error:
                error.where = f"{dockerfile}:{base.line}"
                raise


def _check(policy: ImagePolicy, base: BaseImage, dockerfile: Path) -> None:
    try:
        names.parts(base.name)
    except InvalidInput:
        return  # no name: the plan says so, with its line
    try:
        policy.check_pinned(base.name)
        policy.check_allowed(base.name)
    except UsageError as error:
        error.where = f"{dockerfile}:{base.line}"
        raise


def _bases(dockerfile: Path, build_args: Mapping[str, str]) -> tuple[BaseImage, ...]:
    return base_images(_text(dockerfile).decode("utf-8", "replace"), build_args, where=str(dockerfile))


def _is_elsewhere(store: ImageStore, name: str, settings: RegistrySettings) -> bool:
    try:
        return store.find(name) is None and find_registry(name, settings) is not None
    except InvalidInput:  # no name: the plan says so, with its line
        return False


def _text(dockerfile: Path) -> bytes:
    try:
        return dockerfile.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read the Dockerfile: {error.strerror}", where=str(dockerfile)) from error


def plan_build(
    store: ImageStore, context: Path, dockerfile: Path | None, build_args: Mapping[str, str]
) -> BuildPlan:
    """Read the Dockerfile and the context, and find the base images. Raises as ``build`` does."""
    path = dockerfile or context / "Dockerfile"
    text = _text(path)
    ignore = ignore_file(context, path)
    rules = IgnoreRules(ignore.read_text(errors="replace").splitlines() if ignore else ())
    readable = text.decode("utf-8", "replace")
    wanted = base_images(readable, build_args, where=str(path))
    content = {"dockerfile": hashlib.sha256(text).hexdigest(), "context": context_digest(context, rules)}
    if ignore is not None:
        content["ignore"] = hashlib.sha256(ignore.read_bytes()).hexdigest()
    return BuildPlan(
        context=context.absolute(),
        dockerfile=path.absolute(),
        ignore=ignore.absolute() if ignore else None,
        content=content,
        bases={item.written: _base(store, item.name, f"{path}:{item.line}") for item in wanted},
        build_args=dict(build_args),
        steps=sum(item.name in _MAKES_A_LAYER for item in instructions(readable)),
    )


def _base(store: ImageStore, name: str, place: str) -> NameRecord:
    try:
        store.resolve(name)
        record = store.find(name)
    except NotFound as error:
        raise ImageError(f"the base image {name} is not here", hint=error.hint, where=place) from error
    except InvalidInput as error:
        raise ImageError(error.message, hint=error.hint, where=place) from error
    if record is None:
        raise ImageError(f"the base image {name} was just removed", where=place)
    return record


def _built(store: ImageStore, plan: BuildPlan, wanted: str) -> PreparedImage | None:
    """Return the image that this plan gave before, under the wanted name, if all of it is still there."""
    record = read_json(store.root / "builds" / f"{plan.key}.json")
    if record is None:
        return None
    manifest = store.manifest(record["digest"])
    if manifest is None or not all((store.settings.state_dir / x.path).is_dir() for x in manifest.layers):
        return None
    named = store.find(wanted)
    if named is None or named.digest != manifest.digest:
        with store.writing():
            if store.manifest(manifest.digest) is None:
                return None
            store.put(manifest, _name_record(plan, manifest, wanted))
    return store.resolve(wanted)


def _name_record(plan: BuildPlan, manifest: Manifest, wanted: str) -> NameRecord:
    return NameRecord(
        name=wanted,
        digest=manifest.digest,
        origin="built",
        created_at=time.time(),
        details=plan.details(),
    )


def _raise_shared_failure(failed: Path, asked_at: int) -> None:
    """Fail as the build did that ran while this caller waited for it: running it again would fail again."""
    report = read_json(failed)
    if report is not None and report["at"] > asked_at:
        raise ImageError(report["message"], hint=report["hint"], where=report["where"])


async def _build(
    store: ImageStore, program: str, plan: BuildPlan, wanted: str, *, log: Path, timeout_s: float
) -> None:
    async with store.staging.folder_aside("build") as work:
        tool = Buildah(program, store.settings, work)
        await _remove_dead_containers(store, tool)
        async with waiting_lock(store.root / "locks" / "builds", shared=True):
            try:
                manifest = await _run_build(store, tool, plan, log, timeout_s)
            except BaseException:
                await to_the_end(asyncio.ensure_future(tool.remove_containers(tool.own_containers())))
                raise
            await asyncio.to_thread(_record, store, plan, manifest, wanted, log)


def _record(store: ImageStore, plan: BuildPlan, manifest: Manifest, wanted: str, log: Path) -> None:
    with store.writing():
        store.put(manifest, _name_record(plan, manifest, wanted))
        write_json(store.root / "builds" / f"{plan.key}.json", {"digest": manifest.digest, "log": str(log)})


async def _run_build(
    store: ImageStore, tool: Buildah, plan: BuildPlan, log: Path, timeout_s: float
) -> Manifest:
    known: dict[str, Layer] = {}
    for record in plan.bases.values():
        known |= await _prepare_base(store, tool, record)
    identity = tool.work / "image-id"
    ignore = plan.ignore or tool.no_ignore
    below = max((len(store.manifest_of(record).layers) for record in plan.bases.values()), default=0)
    cached = below + plan.steps <= layers_max(os.uname().release)
    arguments = [*tool.build_arguments(), "--layers" if cached else "--layers=false"]
    arguments += ["--force-rm", "--iidfile", str(identity)]
    arguments += ["--file", str(plan.dockerfile), "--ignorefile", str(ignore)]
    for name, record in plan.bases.items():
        arguments.append(f"--build-context={name}=container-image://{reference(record.digest)}")
    arguments += [f"--build-arg={name}={value}" for name, value in plan.build_args.items()]
    try:
        status = await tool.run(*arguments, str(plan.context), log=log, timeout_s=timeout_s)
    except TimeoutError:
        what = f"building {plan.dockerfile} took longer than {timeout_s:g} s and was ended"
        raise failure(what, log) from None
    if status != 0:
        full = FULL_DISK_HINT if os.strerror(errno.ENOSPC).lower() in last_lines(log).lower() else None
        raise failure(f"building {plan.dockerfile} failed", log, hint=full)
    made = image_id(identity)
    config = await tool.config(made)
    manifest = tool.manifest(made, config, known)
    if not _has_folder(store.settings.state_dir, manifest, config.workdir):
        made = await tool.add_workdir(made)
        manifest = tool.manifest(made, config, known)
    await asyncio.to_thread(check_layers, store.settings.state_dir, manifest)
    if tool.has(manifest.digest):
        return store.manifest(manifest.digest) or manifest
    await tool.output("tag", made, reference(manifest.digest))
    return manifest


def layers_max(kernel: str) -> int:
    """Return how many layers a kernel can merge in one overlay.

    From Linux 6.5 on each is an option of its own, 500 at most (Documentation/filesystems/overlayfs.rst);
    before, all must fit into one string. Where that is too few for a layer per step, all steps make one.
    """
    match = re.match(r"(\d+)\.(\d+)", kernel)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    return LAYERS_MAX if version >= (6, 5) else LAYERS_MAX_OLD_KERNEL


def _has_folder(state_dir: Path, manifest: Manifest, path: str) -> bool:
    """Whether a layer has this folder; a symlink on the way counts as no, which costs a step and no harm."""
    parts = Path(path).parts[1:]
    for layer in manifest.layers:
        place = state_dir / layer.path
        steps = [place.joinpath(*parts[: length + 1]) for length in range(len(parts))]
        if all(step.is_dir() and not step.is_symlink() for step in steps):
            return True
    return False


async def _prepare_base(store: ImageStore, tool: Buildah, record: NameRecord) -> dict[str, Layer]:
    """Make a base image known to buildah; return its layers by their path."""
    manifest = store.manifest_of(record)
    if not tool.has(record.digest):
        lock = store.root / "locks" / f"base-{record.digest.removeprefix('sha256:')[:32]}"
        async with waiting_lock(lock):
            if not tool.has(record.digest):
                await tool.add_base(manifest)
    return {layer.path: layer for layer in manifest.layers}


def check_layers(state_dir: Path, manifest: Manifest) -> None:
    """Refuse what a sandbox could not hold: device nodes (but overlay's whiteouts) and foreign ids."""
    for layer in manifest.layers:
        for path, entry in walk(os.fsencode(state_dir / layer.path)):
            found = entry.stat(follow_symlinks=False)
            name = os.fsdecode(path)
            if stat.S_ISBLK(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev != 0):
                raise ImageError(f"the build made the device node /{name}, which a sandbox cannot hold")
            if max(found.st_uid, found.st_gid) >= SANDBOX_IDS:
                owner = f"{found.st_uid}:{found.st_gid}"
                raise ImageError(f"/{name} belongs to {owner}, outside of a sandbox's {SANDBOX_IDS} ids")


async def _remove_dead_containers(store: ImageStore, tool: Buildah) -> None:
    """Remove working containers of builds whose process was killed; only while no build runs."""
    with try_locked(store.root / "locks" / "builds") as alone:
        if alone:
            await tool.remove_containers(tool.containers())


async def collect(store: ImageStore) -> None:
    """Free what buildah keeps for images that are gone, and its cache of steps that no image needs.

    Does nothing while a build runs (the next call will), or where nothing was ever built.
    """
    program = tool_status()["buildah"]
    if program is None or not (store.settings.state_dir / "buildah" / "overlay-images").is_dir():
        return
    with try_locked(store.root / "locks" / "builds") as alone:
        if not alone:
            return
        async with store.staging.folder_aside("collect") as work:
            tool = Buildah(program, store.settings, work)
            await tool.remove_containers(tool.containers())
            kept = {manifest.digest for manifest in store.manifests()}
            gone = [name for digest, name in tool.references().items() if digest not in kept]
            if gone:
                await tool.output("rmi", "--force", *gone)
            await tool.output("rmi", "--prune", "--force")
        for path in (store.root / "builds").iterdir():
            if path.suffix != ".json" or read_json(path)["digest"] not in kept:
                path.unlink()
