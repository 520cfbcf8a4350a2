"""Whoever writes in a results folder writes through one helper, which makes files exclusively and follows no link."""

import ast

from attnbench.docs.generator.repository import ROOT

WRITES = {
    "write_text", "write_bytes", "mkdir", "makedirs", "touch", "mkstemp", "mkdtemp", "TemporaryFile",
    "NamedTemporaryFile", "TemporaryDirectory", "symlink_to", "hardlink_to", "renames", "copyfile", "copy2",
    "copy", "copytree", "move", "rmtree", "unlink", "remove", "rmdir", "chmod", "truncate", "ftruncate", "mkfifo",
}  # fmt: skip
"""Functions and methods that change files, by their last name."""

ELSEWHERE = {
    "bench/wings/inspect/command.py": "pictures in the folder that the person names with --out",
    "bench/cli/leaderboard.py": "a file that the person names with --out, be it a link or a device",
    "bench/cli/output.py": "the null device",
    "bench/cli/pages.py": "pictures in the folder that the person names with --out",
    "bench/cli/plugin.py": "a new project",
    "bench/cli/preview.py": "a picture that the person names",
    "bench/core/files.py": "the helper",
    "bench/gate/build.py": "the cache folder, trusted files alone",
    "bench/measure/memory.py": "the null device",
    "bench/process/child.py": "the kernel's count of the pages that its process touches",
    "bench/process/servers.py": "the error stream of a server, which has no name",
    "bench/wings/clusters/ray.py": "folders of its own among the temporary files; the token that it made",
    "bench/wings/clusters/ray_watch.py": "the folder of a cluster among the temporary files, which a run has made",
    "bench/wings/clusters/job_files.py": "job files of which the folder is no link",
    "bench/store/record_files.py": "cuts a torn line off a file that was opened to append",
    "bench/store/store.py": "tries the folders with a file that has no name; keeps a line among the temporary files",
    "bench/train/checkpoint.py": "sets a damaged checkpoint aside under a name beside it",
}
"""Files that write by other means, and why none of that is led astray by a link in a results folder."""


def writes_of(tree: ast.Module) -> set[str]:
    """The calls that change files: those of WRITES, openings to write, and a path's `replace` by another path."""
    found = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        words = [a.value for a in (*node.args, *(k.value for k in node.keywords)) if isinstance(a, ast.Constant)]
        modes = [
            word for word in words if isinstance(word, str) and set(word) <= set("rwxab+t") and set(word) & set("wxa+")
        ]
        flags = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        is_opened = name in ("open", "fdopen") and (modes or flags & {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND"})
        # of text, `replace` takes two arguments; of a path, one, and `rename` too
        is_method = name in ("remove", "copy", "move") and owner not in ("os", "shutil")
        is_moved = (
            name in ("replace", "rename")
            and isinstance(node.func, ast.Attribute)
            and len(node.args) == 1
            and not node.keywords
        )
        is_saved = name == "save" and bool(node.args)
        if (name in WRITES and not is_method) or is_saved or is_opened or is_moved:
            found.add(name)
    return found


def test_nobody_writes_beside_the_helper() -> None:
    found = {}
    for folder in ("bench", "dashboards"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            calls = writes_of(ast.parse(path.read_text(encoding="utf-8")))
            if calls:
                found[str(path.relative_to(ROOT))] = calls
    strange = {name: calls for name, calls in found.items() if name not in ELSEWHERE}
    assert not strange, f"write through bench/core/files.py, or say in ELSEWHERE why not: {strange}"
    assert ELSEWHERE.keys() <= found.keys(), f"these write nothing any more: {ELSEWHERE.keys() - found.keys()}"


def test_each_way_to_write_is_seen() -> None:
    lines = (
        "path.write_text('a')", "open(path, 'w')", "path.open('ab')", "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "a.replace(b)", "a.rename(b)", "os.remove(a)",
        "os.mkdir(a)", "tempfile.mkdtemp()", "shutil.copytree(a, b)", "os.fdopen(handle, 'wb')",
    )  # fmt: skip
    assert all(writes_of(ast.parse(line)) for line in lines)
    harmless = (
        "open(path)",
        "path.open('rb')",
        "text.replace('a', 'b')",
        "replace(cell, seed=1)",
        "context.open(cell)",
        "a.remove(1)",
    )
    assert not any(writes_of(ast.parse(line)) for line in harmless)
