"""Builds PufferLib 3.0.0 into the venv whose Python runs this, for the CPU and without its own C environments.

Three things stop a plain `pip install`:
- the sdist builds its Ocean games against raylib and box2d, downloaded meanwhile: NO_OCEAN=1 leaves them out;
- with NO_OCEAN its setup.py fails on `c_extension_paths`, a name it then never sets. pip runs setup.py even to
  download the sdist, so there is nothing to patch in time: a sitecustomize supplies the name as a builtin instead;
- where an nvcc is on the path it wants a CUDA build, whatever torch it finds: the path loses that folder.

--no-deps: its requirements name a dozen packages that only its sweeps and trackers use.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    environment = {**os.environ, "NO_OCEAN": "1"}
    while nvcc := shutil.which("nvcc", path=environment["PATH"]):
        folders = environment["PATH"].split(os.pathsep)
        environment["PATH"] = os.pathsep.join(folder for folder in folders if folder != os.path.dirname(nvcc))
    with tempfile.TemporaryDirectory() as shim:
        Path(shim, "sitecustomize.py").write_text("import builtins\nbuiltins.c_extension_paths = []\n")
        environment["PYTHONPATH"] = shim
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "pufferlib==3.0.0"], env=environment, check=True)


if __name__ == "__main__":
    main()
