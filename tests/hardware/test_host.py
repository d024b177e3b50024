"""What is read from /proc and the like, as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from vq_console.hardware.host import (
    cgroup_memory,
    container_kind,
    file_system_of,
    model_cache_dir,
    os_name,
    parse_cpuinfo,
)

XEON = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8488C
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 avx512_vnni amx_bf16 amx_tile amx_int8 avx_vnni
"""
GRACE = "processor\t: 0\nFeatures\t: fp asimd evtstrm asimddp sve i8mm bf16\nCPU implementer\t: 0x41\n"


@pytest.mark.parametrize(
    ("text", "name", "flags"),
    [
        (
            XEON,
            "Intel(R) Xeon(R) Platinum 8488C",
            ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"),
        ),
        ("model name : Core 2\nflags : sse2 ssse3\n", "Core 2", ()),
        (GRACE, None, ("asimd", "asimddp", "bf16", "i8mm", "sve")),
        ("", None, ()),
    ],
)
def test_cpuinfo(text: str, name: str | None, flags: tuple[str, ...]) -> None:
    assert parse_cpuinfo(text) == (name, flags)


def test_os_name() -> None:
    assert os_name('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\n') == "Ubuntu 24.04.1 LTS"
    assert os_name("") is None


def test_file_system_of_the_deepest_mount(tmp_path: Path) -> None:
    inside = tmp_path / "models/hub"
    inside.mkdir(parents=True)
    escaped = str(tmp_path / "models").replace(" ", "\\040")
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        f"2 1 0:40 / {escaped} rw,x - nfs4 server:/m rw\n"
        f"3 1 0:41 / {escaped}x rw - tmpfs t rw\nbroken\n"
    )
    assert file_system_of(inside, text) == "nfs4"
    assert file_system_of(Path("/"), text) == "ext4"
    assert file_system_of(inside, "") is None


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ((), {}, None),
        ((".dockerenv",), {}, "docker"),
        (("run/.containerenv",), {}, "podman"),
        ((), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ((), {"container": "lxc"}, "lxc"),
    ],
)
def test_container_kind(tmp_path: Path, files: tuple[str, ...], environment: dict[str, str], kind: str | None) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert container_kind(tmp_path, environment) == kind


def test_container_limits(tmp_path: Path) -> None:
    assert cgroup_memory(tmp_path) == (None, None)
    (tmp_path / "memory.max").write_text("max\n")
    assert cgroup_memory(tmp_path) == (None, None)
    (tmp_path / "memory.max").write_text("8589934592\n")
    (tmp_path / "memory.current").write_text("1073741824\n")
    assert cgroup_memory(tmp_path) == (8589934592, 1073741824)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_model_cache(environment: dict[str, str], expected: str) -> None:
    assert str(model_cache_dir(environment)) == expected
