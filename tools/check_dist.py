"""Build the wheel and the sdist, install each in a new environment, and try it there, away from the repository.

python tools/check_dist.py [--dependencies]

The wheel has the compiled core; the sdist is built without a compiler, and must work without the core. Dependencies
come from the environment that runs this; with --dependencies they are installed again, as a user's pip would do.
"""

import argparse
import os
import shutil
import site
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
SMOKE = """
import pathlib, torch, pof
from pof.core.library import core
assert (core() is not None) == {with_core}, core()
assert "site-packages" in pof.__file__, pof.__file__
model, images = pof.models.resnet20().eval(), torch.randn(2, 3, 32, 32)
elastic = pof.Elastic(model)
size = pof.save(model, "model.pof")
elastic.prune(0.8)
other = pof.models.resnet20().eval()
pof.load("model.pof", into=other, sparsity=0.8)
assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
pof.export(model, "model.pth")
if core() is not None:
    assert torch.allclose(pof.compile(model, images)(images), model(images), atol=1e-4)
print(f"pof {{pof.__version__}}: a file of {{size:,}} bytes, core: {{core() is not None}}")
"""


def main() -> None:
    """Build, install and try both packages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dependencies", action="store_true", help="install the dependencies again")
    fresh = parser.parse_args().dependencies
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", "dist", cwd=ROOT)
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        for name, package, with_core in (("wheel", wheel, True), ("sdist", sdist, False)):
            print(f"-- {package.name}", flush=True)
            try_out(Path(folder) / name, package, with_core=with_core, fresh=fresh)


def try_out(folder: Path, package: Path, *, with_core: bool, fresh: bool) -> None:
    """Install `package` in a new environment in `folder`, and use it there."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    # If setuptools finds no compiler, it leaves the core out, with a warning.
    environment = {**os.environ, **({} if with_core else {"CC": "no-compiler-here"})}
    environment.pop("PYTHONPATH", None)
    constraints = ["--constraint", ROOT / "constraints.txt"]
    run(python, "-m", "pip", "install", "--quiet", *constraints, *([] if fresh else ["--no-deps"]), package,
        cwd=folder, env=environment)  # fmt: skip
    if not fresh:
        (inside,) = folder.glob("lib/python*/site-packages")
        # Add only the folder itself, so that packages installed here in editable mode are not found.
        (inside / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    run(python, "-W", "error", "-c", SMOKE.format(with_core=with_core), cwd=folder, env=environment)
    run(folder / "bin" / "pof", "demo", cwd=folder, env=environment)


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> None:
    """Run a command, or stop with its exit code."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=env, check=False)
    if done.returncode:
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
