#!/usr/bin/env python3
"""Prints the keys that a release of other software accepts, as rows of an X-list.

    git show core_v0.13.0:megatron/training/arguments.py | extract.py argparse > megatron_lm.def
    git show v0.2.2:torchtitan/config/job_config.py | extract.py JobConfig > torchtitan.def

The argument is `argparse`, for calls of add_argument(), or the name of a dataclass, whose members
are dataclasses of the same file.

The source is parsed and not executed: neither the software nor its dependencies are needed.
"""
import ast
import sys

KIND = {"int": "INT", "float": "REAL", "str": "TEXT", "bool": "BOOL"}


def literal(node):
    """The value of an expression of constants; the source text of any other expression."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        text = ast.unparse(node)
    constant = {"2 ** 32": 4294967296, "AttnBackend.auto": "auto",
                "list(AttnBackend)": ["flash", "fused", "unfused", "local", "auto"],
                "range(0, 3)": [0, 1, 2]}
    return constant.get(text, None)


def text_of(value):
    if value is None or value == []:
        return "none"
    if isinstance(value, list):
        return ",".join(text_of(v) for v in value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def print_row(macro, cells):
    """One row, on as many lines of at most 100 columns as it takes."""
    line, indent = f"{macro} (", " " * (len(macro) + 2)
    for i, cell in enumerate(cells):
        piece = cell + (")" if i + 1 == len(cells) else ", ")
        if len(line) + len(piece.rstrip()) > 100 and line.strip():
            print(line.rstrip())
            line = indent
        while len(line) + len(piece.rstrip()) > 100:
            cut = piece.rindex(" ", 0, 98 - len(line)) + 1
            print(line + piece[:cut] + '"')
            line, piece = indent, '"' + piece[cut:]
        line += piece
    print(line)


def argument_row(call):
    """ARG (name, kind, number of values, default, destination, choices)"""
    names = [literal(a) for a in call.args]
    given = {k.arg: literal(k.value) for k in call.keywords if k.arg not in ("help", "type")}
    kind_text = next((ast.unparse(k.value) for k in call.keywords if k.arg == "type"), "str")
    action = given.get("action")
    kind = {"store_true": "ON", "store_false": "OFF"}.get(action) or KIND.get(kind_text, "TEXT")
    default = given.get("default", action == "store_false" if action else None)
    dest = given.get("dest") or names[0].lstrip("-").replace("-", "_")
    choices = [text_of(c) for c in given.get("choices") or [] if c is not None]
    for name in names:
        print_row("ARG", [quoted(name.lstrip("-")), kind, "MANY" if "nargs" in given else "ONE",
                          quoted(text_of(default)), quoted(dest), quoted(" ".join(choices))])


def print_arguments(tree):
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)
             and isinstance(n.func, ast.Attribute) and n.func.attr == "add_argument"]
    for call in sorted(calls, key=lambda n: n.lineno):
        argument_row(call)


def words_of(annotation):
    """The names and the choices of a type: int | None, Literal["a", "b"], list[str]."""
    names = [n.id for n in ast.walk(annotation) if isinstance(n, ast.Name)]
    choices = []
    for node in ast.walk(annotation):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "Literal":
            choices += [text_of(literal(c)) for c in getattr(node.slice, "elts", [node.slice])]
    return names, choices


def default_of(value):
    """The default of a member; field(default_factory=list) is an empty list."""
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return literal(value)
    factory = next((k.value for k in value.keywords if k.arg == "default_factory"), None)
    return literal(factory.body) if isinstance(factory, ast.Lambda) else None


def print_members(classes, name, prefix):
    for member in classes[name].body:
        if not isinstance(member, ast.AnnAssign):
            continue
        key, (names, choices) = prefix + member.target.id, words_of(member.annotation)
        if names[0] in classes:
            print_members(classes, names[0], key + ".")
            continue
        kind = next((KIND[n] for n in ("float", "bool", "int") if n in names), "TEXT")
        print_row("ARG", [quoted(key), kind, "MANY" if "list" in names else "ONE",
                          quoted(text_of(default_of(member.value))), quoted(key),
                          quoted(" ".join(choices))])


if __name__ == "__main__":
    source = ast.parse(sys.stdin.read())
    if sys.argv[1] == "argparse":
        print_arguments(source)
    else:
        print_members({n.name: n for n in source.body if isinstance(n, ast.ClassDef)},
                      sys.argv[1], "")
