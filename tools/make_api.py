"""Write docs/api from the signatures and docstrings of the public names.

    python tools/make_api.py

The source is read; only the declarations of options, from which signatures derive, are imported.
"""

import ast
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probmcl.settings.declaration import public_signature, with_arguments

FOLDER = Path(__file__).parent.parent / "docs" / "api"
SOURCE = Path(__file__).parent.parent / "src"
WIDTH = 100  # characters per line

INTRODUCTION = """The public names of `probmcl` and its library packages. `tools/make_api.py` generates these pages
from the docstrings. [python.md](../python.md) has examples."""

EVALUATIONS = ("ModelEvaluation", "Evaluation", "SplitMetrics")
BASE_CLASSES = ("Step", "Method", "Classifier", "LogitClassifier", "LinearClassifier")
PAGES: dict[str, Sequence[str]] = {
    "probmcl": (
        *("train", "compare", "check", "load", "Model", "Predictions", "Prediction"),
        *EVALUATIONS,
        *("Run", "ReadOptions", "DataChecks", "DataAudit"),
    ),
    "probmcl.readers": ("read",),
    "probmcl.data": ("Records", "LabelSpace", "describe", "Preprocessing", "read_image"),
    "probmcl.encoders": (),
    "probmcl.mixture": (),
    "probmcl.overlap": ("jaccard", "cosine"),
    "probmcl.losses": (),
    "probmcl.methods": ("METHODS", "find_method", *BASE_CLASSES),
    "probmcl.evaluation": (),
    "probmcl.calibration": (),
    "probmcl.explain": (),
}
"""The names on the page of each package; an empty tuple means its `__all__`."""

NOT_IMPORTED = {
    **dict.fromkeys(("Predictions", "Prediction"), "probmcl.inference"),
    **dict.fromkeys(EVALUATIONS, "probmcl.store.evaluation"),
    **dict.fromkeys(BASE_CLASSES, "probmcl.methods.base"),
}
"""The modules of names that are on the page of a package but not imported by it."""

SECTIONS = {"Args:": "Arguments:", "Attributes:": "Attributes:", "Returns:": "Returns:", "Raises:": "Raises:"}

Node = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


class Definition(NamedTuple):
    """A public name, the module that defines it, and the definition."""

    name: str
    module: str
    node: Node
    docstring: str


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    texts = {"README.md": ["# Python API", "", INTRODUCTION]}
    for package, names in PAGES.items():
        file = f"{package.removeprefix('probmcl.')}.md"
        definitions = [_find(NOT_IMPORTED.get(name, package), name) for name in names or _all(package)]
        texts["README.md"] += ["", f"## [{package}]({file})", "", "| name | |", "|---|---|"]
        texts["README.md"] += [_row(file, definition) for definition in definitions]
        texts[file] = [f"# {package}", "", *_markdown(ast.get_docstring(_parse(package)) or "")]
        texts[file] += [line for definition in definitions for line in _entry(definition)]
    return {file: "\n".join(lines) + "\n" for file, lines in texts.items()}


def _file(module: str) -> Path:
    path = SOURCE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _parse(module: str) -> ast.Module:
    return ast.parse(_file(module).read_text(encoding="utf-8"))


def _all(package: str) -> list[str]:
    assignments = [node for node in _parse(package).body if isinstance(node, ast.Assign | ast.AugAssign)]
    lists = [node.value for node in assignments if ast.unparse(node).startswith("__all__")]
    return sorted((name for names in lists for name in ast.literal_eval(names)), key=str.lower)


def _find(module: str, name: str) -> Definition:
    """Return the definition of a name, following imports."""
    body = _parse(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Definition(name, module, node, ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and re.match(rf"{name}\b", ast.unparse(node)):
            return Definition(name, module, node, _text(following))
    guarded = [part for node in body if isinstance(node, ast.If) for part in node.body]  # if TYPE_CHECKING
    for node in [*body, *guarded]:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return _find(str(node.module), name)
    raise LookupError(f"{module} does not define or import {name}")


def _text(node: ast.stmt | None) -> str:
    """Return the text of a statement that is just a string, such as the docstring of a constant."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return inspect.cleandoc(str(node.value.value)) if is_text else ""  # type: ignore[union-attr]


def _row(file: str, definition: Definition) -> str:
    summary = _escape(definition.docstring.partition("\n\n")[0].replace("\n", " ")).replace("|", "\\|")
    return f"| [`{definition.name}`]({file}#{definition.name.lower()}) | {summary} |"


def _entry(definition: Definition) -> Iterator[str]:
    name, module, node, docstring = definition
    source = _file(module).read_text(encoding="utf-8").splitlines()
    options = _options(node, module)
    yield from ("", f"## {name}", "", "```python", *_signature(node, source, options), "```", "")
    if docstring:
        yield from (*_markdown(with_arguments(docstring, options) if options else docstring), "")
    yield f"Source: [`{module}`](../../src/{_file(module).relative_to(SOURCE)})"
    for method in node.body if isinstance(node, ast.ClassDef) else ():
        documented = isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
        if isinstance(method, ast.FunctionDef) and documented and not method.name.startswith("_"):
            options = _options(method, module)
            yield from ("", f"### {name}.{method.name}", "")
            if "property" not in map(ast.unparse, method.decorator_list):
                yield from ("```python", *_signature(method, source, options), "```", "")
            yield from _markdown(with_arguments(documented, options) if options else documented)


def _options(node: Node, module: str) -> type[Any] | None:
    """Return the declaration of the options of a function or method; None if it has ordinary parameters."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        call = re.fullmatch(r"(?:method_)?keywords_of\((\w+)\)", ast.unparse(decorator))
        if call is not None:
            declaration = _find(module, call[1])
            options: type[Any] = getattr(importlib.import_module(declaration.module), declaration.name)
            return options
    return None


def _signature(node: Node, source: list[str], options: type[Any] | None = None) -> list[str]:
    """Return the call of a function or class with its annotations, or the assignment of a constant."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return source[node.lineno - 1 : node.end_lineno]
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return _call(node.name, list(_declared(options)) if options else _arguments(node.args), returns)
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            return _call(f"class {node.name}", _arguments(part.args), "")
    is_record = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    is_record |= "NamedTuple" in map(ast.unparse, node.bases)
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)] if is_record else node.bases
    return _call(f"class {node.name}", [ast.unparse(part) for part in fields], "")


def _call(name: str, arguments: list[str], returns: str) -> list[str]:
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= WIDTH:
        return [line]
    return [f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"]


def _declared(options: type[Any]) -> Iterator[str]:
    """Yield the text of each argument that is a declared option."""
    only_by_name = False
    for parameter in public_signature(options).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not only_by_name:
            only_by_name = True
            yield "*"
        text = f"{parameter.name}: {_type(parameter.annotation)}"
        yield text if parameter.default is parameter.empty else f"{text} = {_default(parameter.default)}"


def _type(hint: Any) -> str:
    """Return the text of a type as in the source.

    >>> _type(Path | typing.Literal["all", "none"] | None)
    "Path | Literal['all', 'none'] | None"
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_type, parts))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, parts))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type, parts))}]"
    return "None" if hint is type(None) else str(hint.__name__)


def _default(value: object) -> str:
    """Return the text of a default; options for reading and checking data are too long to be shown."""
    return repr(value) if isinstance(value, str | int | float | None) else f"{type(value).__name__}()"


def _arguments(arguments: ast.arguments) -> list[str]:
    """Return the text of each argument, without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    texts = [_argument(*pair) for pair in zip(positional, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    texts += [f"*{_argument(arguments.vararg)}"] if arguments.vararg else ["*"] if arguments.kwonlyargs else []
    return texts + [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]


def _argument(argument: ast.arg, default: ast.expr | None = None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    return argument.arg + annotation + (f" = {ast.unparse(default)}" if default else "")


def _markdown(docstring: str) -> list[str]:
    """Convert a Google-style docstring to Markdown."""
    lines: list[str] = []
    for paragraph in docstring.split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if paragraph.startswith(">>>"):
            block = ["```pycon", *paragraph.splitlines(), "```"]
        elif first in SECTIONS:
            block = [SECTIONS[first], "", *_items(textwrap.dedent(rest))]
        elif re.match(r"1\. |- |    ", paragraph):  # a list, or code
            block = paragraph.splitlines()
        else:
            block = _wrap(_escape(paragraph))
        lines += ["", *block]
    return lines[1:]


def _items(text: str) -> Iterator[str]:
    """Yield the lines of a list with an item for each `name: description`."""
    for item in re.split(r"\n(?=\S)", text):
        name, colon, description = item.partition(": ")
        yield from _wrap(f"- `{name}`: {_escape(description)}" if colon else f"- {_escape(item)}", indent="  ")


def _escape(text: str) -> str:
    """Escape Markdown's special characters outside code."""
    parts = text.split("`")
    return "`".join(part if number % 2 else re.sub(r"[*<>]", r"\\\g<0>", part) for number, part in enumerate(parts))


def _wrap(text: str, indent: str = "") -> list[str]:
    """Wrap a paragraph. Lines after the first must not look like a list item or a heading."""
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH - 1, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return lines[:1] + [re.sub(r"^( *)([-+#=] )", r"\1\\\2", line) for line in lines[1:]]


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(exist_ok=True)
    for file, text in pages().items():
        (FOLDER / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
