"""How long a start may take, by the size of the model and the disk it lies on."""

from __future__ import annotations

import os

NETWORK_FILESYSTEMS = frozenset({
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "virtiofs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.ceph",
})  # fmt: skip
BASE_S = 1200.0
"""Imports, compilation, graphs and first-token kernels of a large model on a slow CPU, with room to spare."""
DOWNLOAD_S = 6 * 3600.0
NEVER_S = 7 * 86400.0
LOCAL_GIB_PER_S = 0.1
NETWORK_GIB_PER_S = 0.02
ENGINE_DEFAULT_S = 600
"""vLLM's VLLM_ENGINE_READY_TIMEOUT_S (envs.py, 0.20 to 0.33): its front end gives up on its engine after this."""


def startup_limit_s(size_gib: float | None, *, local: bool, network: bool) -> float:
    """Seconds until a start counts as failed. `local` is False when weights may still have to be downloaded."""
    if not local:
        return DOWNLOAD_S
    speed = NETWORK_GIB_PER_S if network else LOCAL_GIB_PER_S
    return BASE_S + (size_gib or 0.0) / speed


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that holds `path`, from the text of /proc/self/mountinfo. Pure."""
    best: tuple[int, str] | None = None
    for line in mountinfo.splitlines():
        fields = line.split()
        if "-" not in fields or len(fields) < 6:
            continue
        point = fields[4].replace("\\040", " ")
        kind = fields[fields.index("-") + 1]
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), kind)
    return best[1] if best else None


def on_network(path: str) -> bool:
    """True when `path` lies on a network file system, as far as the kernel tells."""
    try:
        with open("/proc/self/mountinfo") as file:
            return filesystem_of(os.path.realpath(path), file.read()) in NETWORK_FILESYSTEMS
    except OSError:
        return False
