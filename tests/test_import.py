import ast
import inspect
import subprocess
import sys

import pytest

import ropewalk as rw


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_lazy():
    loaded = python(
        "import sys, ropewalk, ropewalk.catalog; ropewalk.catalog(); print(*sys.modules, sep='\\n')"
    ).split()
    assert "ropewalk.catalog" in loaded
    assert not {"torch", "typer", "rich", "numpy"} & set(loaded)


def test_command_line_imports_no_torch():
    assert "torch" not in python("import sys, ropewalk.cli; print(*sys.modules, sep='\\n')").split()


@pytest.mark.parametrize("name", rw.__all__)
def test_every_public_name_resolves(name):
    assert getattr(rw, name) is getattr(rw, name)


def test_dir_names_everything_public():
    assert set(rw.__all__) <= set(dir(rw))


def test_type_checkers_see_the_table():
    seen = {}
    for block in ast.parse(inspect.getsource(rw)).body:
        if isinstance(block, ast.If):
            for line in block.body:
                assert isinstance(line, ast.ImportFrom)
                for alias in line.names:
                    assert alias.name == alias.asname  # the spelling that re-exports
                    home = alias.name if line.module == "ropewalk" else line.module.removeprefix("ropewalk.")
                    seen[alias.name] = home
    assert seen == rw._HOME


def test_unknown_name():
    with pytest.raises(AttributeError, match="has no attribute 'RoPe'"):
        _ = rw.RoPe


@pytest.mark.parametrize(
    "first",
    [
        "import ropewalk.catalog",
        "from ropewalk.catalog import record",
        "from ropewalk import catalog",
        "import ropewalk as rw; rw.catalog()",
        "import ropewalk as rw; rw.build",
    ],
)
def test_catalog_is_module_and_function_in_any_order(first):
    python(
        f"{first}\n"
        "import ropewalk as rw\n"
        "records = rw.catalog()\n"
        "import ropewalk.catalog as module\n"
        "from ropewalk.catalog import catalog as function, record\n"
        "from ropewalk import catalog\n"
        "assert rw.catalog is module is catalog\n"
        "assert records == module() == function() == rw.catalog()\n"
        "assert rw.catalog.record('rope') is record('rope') is rw.record('rope')\n"
    )
