"""The wheel, as a user gets it: built from the tree, installed into an empty environment, used from elsewhere.

torch is not downloaded for this: a .pth file lends the new environment the packages of the one that runs the tests. It is
installed without dependencies and without an index, so nothing here needs a network; that ropewalk itself comes from the
wheel, and not from this tree, is checked.
"""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "ropewalk"


def run(*command, cwd, **more):
    """Run a command with nothing of this tree, or of this process, on its path."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COVERAGE"))}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, **more)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist, cwd=ROOT)
    (made,) = dist.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Return the folder of the scripts of an environment that holds the wheel and nothing else of ropewalk."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False)
    scripts = home / ("Scripts" if os.name == "nt" else "bin")
    (packages,) = [p for p in home.rglob("site-packages") if p.is_dir()]
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--no-deps", "--no-index")
    run(*pip, "--quiet", "--disable-pip-version-check", wheel, cwd=home)
    (packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return scripts


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {n for n in archive.namelist() if ".dist-info/" not in n}
        (metadata,) = [archive.read(n).decode() for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
    there = {
        f"ropewalk/{file.relative_to(PACKAGE).as_posix()}"
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert inside == there
    assert {"ropewalk/py.typed", "ropewalk/lab/report/style.css"} <= inside
    assert {"code", "dev", "hf", "lab", "ray"} == set(re.findall(r"^Provides-Extra: (\S+)", metadata, re.M))
    required = [line for line in re.findall(r"^Requires-Dist: (.*)", metadata, re.M) if "extra ==" not in line]
    assert sorted(re.match(r"[\w-]+", line)[0] for line in required) == ["rich", "torch", "typer"]


def test_the_command_line_runs_from_elsewhere(installed, tmp_path):
    version = re.search(r'__version__ = "(.*)"', (PACKAGE / "__init__.py").read_text(encoding="utf-8"))[1]
    assert version in run(installed / "ropewalk", "--version", cwd=tmp_path)
    assert "alibi" in run(installed / "ropewalk", "list", cwd=tmp_path)
    assert "2104.09864" in run(installed / "ropewalk", "show", "rope", cwd=tmp_path)


def test_three_lines_of_attention_run_from_elsewhere(installed, tmp_path):
    program = """
import pathlib, sys, torch
import ropewalk as rw

assert pathlib.Path(rw.__file__).is_relative_to(sys.prefix), rw.__file__
q = torch.ones(1, 2, 5, 64)
encoding = rw.RoPE(64)
problem = encoding(rw.Attention(q, q, q))
out = rw.attend(problem)
print(tuple(out.shape), float(out.mean()))
"""
    assert run(installed / "python", "-W", "error", "-c", program, cwd=tmp_path).strip() == "(1, 2, 5, 64) 1.0"


def test_data_files_are_found_where_they_were_installed(installed, tmp_path):
    program = """
from importlib.resources import files
print(len(files("ropewalk.lab.report").joinpath("style.css").read_text(encoding="utf-8")) > 0)
"""
    assert run(installed / "python", "-c", program, cwd=tmp_path).strip() == "True"
