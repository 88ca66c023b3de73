"""Stand-ins for Python modules that configuration classes of training software import.

accept.py needs neither PyTorch nor a GPU: install() replaces modules by stand-ins, whose names are
classes that accept any use. pydantic_standin() makes the part of pydantic 2 that DeepSpeed's
configuration uses, which checks names, types and bounds."""
import abc
import enum
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
import typing


VERSION = "2.9.0"  # of every stand-in


# Operators of stand-ins. Comparisons answer as for a version that is exactly the one in question.
OPERATORS = {"__lt__": lambda a, b: False, "__gt__": lambda a, b: False,
             "__le__": lambda a, b: True, "__ge__": lambda a, b: True,
             "__iter__": lambda a: iter(()), "__contains__": lambda a, b: False}


class Kind(abc.ABCMeta):
    """The class of stand-in classes: each unknown member is another stand-in class."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = Kind(name, (StandIn,), {"__module__": cls.__module__})
        setattr(cls, name, made)
        return made

    def __or__(cls, other):
        return cls

    __ror__ = __or__
    locals().update(OPERATORS)


class StandIn(metaclass=Kind):
    def __init__(self, *args, **settings):
        pass

    def __call__(self, *args, **settings):
        decorates = len(args) == 1 and callable(args[0]) and not settings
        return args[0] if decorates else StandIn()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __class_getitem__(cls, item):
        return cls

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    locals().update(OPERATORS)


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name == "__version__":
            return VERSION
        if name.startswith("__"):
            raise AttributeError(name)
        made = Kind(name, (StandIn,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds each module below the given names, after those that are installed."""

    def __init__(self, names):
        self.names = set(names)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


def install(names):
    """Replaces modules of these names (separated by blanks) that are not installed."""
    installed = importlib.metadata.version

    def version(name):
        try:
            return installed(name)
        except importlib.metadata.PackageNotFoundError:
            return VERSION

    importlib.metadata.version = version
    sys.meta_path.append(Finder(names.split()))


# ------------------------------------------------------------------------------------- pydantic

class Rule:
    """A member of a model: its default and its bounds."""

    def __init__(self, default=..., default_factory=None, alias=None, ge=None, gt=None, le=None,
                 lt=None, **extra):
        self.default, self.factory, self.alias = default, default_factory, alias
        self.bounds = [(">=", ge, lambda a, b: a >= b), (">", gt, lambda a, b: a > b),
                       ("<=", le, lambda a, b: a <= b), ("<", lt, lambda a, b: a < b)]
        self.json_schema_extra = {**(extra.pop("json_schema_extra", None) or {}), **extra}

    def is_required(self):
        return self.default is ... and self.factory is None

    def get_default(self):
        return self.factory() if self.factory else self.default


def fits(value, wanted):
    """Returns the value as a member of this type; raises ValueError if it cannot be one."""
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is typing.Union or origin is types.UnionType:
        for part in parts:
            try:
                return fits(value, part)
            except ValueError:
                pass
    elif origin is typing.Literal and value in parts or wanted is typing.Any:
        return value
    elif wanted is type(None) and value is None:
        return value
    elif isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return value if isinstance(value, wanted) else wanted(value)
    elif isinstance(wanted, type) and hasattr(wanted, "model_fields") and isinstance(value, dict):
        return wanted(**value)
    elif wanted is float and type(value) in (int, float):
        return float(value)
    elif wanted is int and type(value) is float and value == int(value):
        return int(value)
    elif origin in (list, dict, tuple, set) and isinstance(value, origin):
        return value
    elif isinstance(wanted, Kind):
        return value
    elif isinstance(wanted, type) and type(value) is wanted:
        return value
    elif isinstance(wanted, type) and wanted not in (int, bool) and isinstance(value, wanted):
        return value
    raise ValueError(f"found {value!r}, wanted {wanted}")


class Model:
    """A class of members with types and bounds; other names are refused."""
    model_fields = {}

    def __init_subclass__(cls, **settings):
        hints = typing.get_type_hints(cls)
        cls.model_fields, cls.types = dict(cls.model_fields), hints
        for name in cls.__dict__.get("__annotations__", {}):
            default = cls.__dict__.get(name, ...)
            rule = default if isinstance(default, Rule) else Rule(default)
            if name != "model_config":
                cls.model_fields[name] = rule

    def __init__(self, **data):
        data = self.call("before", data)
        by_alias = {r.alias or n: n for n, r in self.model_fields.items()}
        unknown = [k for k in data if k not in by_alias and k not in self.model_fields]
        if unknown:
            raise ValueError(f"{type(self).__name__} has no {', '.join(unknown)}")
        given = {by_alias.get(k, k): v for k, v in data.items()}
        self.model_fields_set = set(given)
        for name, rule in self.model_fields.items():
            value = given[name] if name in given else rule.get_default()
            if value is ...:
                raise ValueError(f"{type(self).__name__} needs {name}")
            if name in given:
                value = fits(value, self.types[name])
                self.check(name, rule, value)
            setattr(self, name, value)
        self.call("after", None)

    def check(self, name, rule, value):
        for word, bound, holds in rule.bounds:
            if bound is not None and value is not None and not holds(value, bound):
                raise ValueError(f"{name} = {value}, wanted {word} {bound}")

    def call(self, mode, data):
        for owner in type(self).__mro__:
            for method in list(owner.__dict__.values()):
                if getattr(method, "validates", None) == mode and mode == "before":
                    data = method(type(self), data)
                elif getattr(method, "validates", None) == mode:
                    method(self)
        return data


def pydantic_standin():
    def validator(mode="after", **settings):
        def mark(method):
            method = getattr(method, "__func__", method)
            method.validates = mode
            return method
        return mark

    def plain(*args, **settings):
        return lambda method: method

    made = types.ModuleType("pydantic")
    made.BaseModel, made.ConfigDict, made.Field = Model, dict, Rule
    made.model_validator, made.field_validator, made.field_serializer = validator, plain, plain
    made.PositiveInt = int
    sys.modules["pydantic"] = made
