"""Volumes as the spawner wants them: folders of the host with every link resolved, and places inside.

Must never let through a folder that holds or lies in the store or the run folder: the spawner refuses it once
more, by what the folders are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cloche.core.errors import InvalidInput
from cloche.sandbox.guest.frames import Value
from cloche.sandbox.native.wire import Tag
from cloche.sandbox.settings import Settings
from cloche.sandbox.spec import SandboxSpec, Volume

VOLUMES_MAX = 16
_TARGET_BYTES_MAX = 1000
_TAKEN = ("/", "/proc", "/sys", "/dev", "/etc")
_KERNELS = ("/proc", "/sys", "/dev")


def _target(volume: Volume) -> str:
    path = PurePosixPath(volume.target)
    if not path.is_absolute() or ".." in path.parts or "\0" in volume.target:
        raise InvalidInput(f"volume target {volume.target!r} is no absolute path")
    text = "/" + "/".join(path.parts[1:])
    if text in _TAKEN or any(text.startswith(f"{folder}/") for folder in _KERNELS):
        raise InvalidInput(f"volume target {text} is taken by the sandbox itself")
    if len(os.fsencode(text)) > _TARGET_BYTES_MAX:
        raise InvalidInput(f"volume target {text[:40]}… is longer than {_TARGET_BYTES_MAX} bytes")
    return text


def _source(volume: Volume, ours: tuple[Path, ...]) -> str:
    try:
        source = volume.source.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput(f"volume {volume.source} cannot be used: {error}") from error
    if not volume.source.is_absolute() or not source.is_dir():
        raise InvalidInput(f"volume {volume.source} is no folder with an absolute path")
    for folder in ours:
        if source.is_relative_to(folder) or folder.is_relative_to(source):
            raise InvalidInput(
                f"volume {source} would show sandboxes {folder}", hint="choose a folder beside it"
            )
    return str(source)


def volume_fields(spec: SandboxSpec, settings: Settings) -> Iterator[tuple[int, Value]]:
    """Yield source and target of each volume. Raises InvalidInput for one that cannot be."""
    if not spec.volumes:
        return
    if len(spec.volumes) > VOLUMES_MAX:
        raise InvalidInput(f"{len(spec.volumes)} volumes: {VOLUMES_MAX} are the most")
    ours = (settings.state_dir.resolve(), settings.run_dir.resolve())
    targets = [_target(volume) for volume in spec.volumes]
    for target in targets:
        if any(other.startswith(f"{target}/") for other in targets) or targets.count(target) > 1:
            raise InvalidInput(f"two volumes at {target}: none can be below another")
    for volume, target in zip(spec.volumes, targets, strict=True):
        yield Tag.VOLUME_SOURCE, _source(volume, ours)
        yield Tag.VOLUME_TARGET, target
