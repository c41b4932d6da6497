"""Commands that are made from the methods of `Project`: their names, arguments, options, types and help.

A method that takes more on the command line, such as a confirmation, has an entry in `added.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli.added import ADDED, ENGINE, RUN, Added, engine_option, log_option
from tidegate.pipelines.project.cli.screen import Screen, of_screen
from tidegate.pipelines.project.given import Bound, KeyGiven, KeyText, Moment, size_of
from tidegate.pipelines.project.namespaces import Namespace
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stopping import StopRequest

_NULL = r"\N is a null"
_LIMIT = "--max-{}-per-epoch"
_NO_COMMANDS = {"close"}
"""Methods for programs alone: a command ends everything that it started."""


def namespaces() -> dict[str, type[Namespace]]:
    """Return the name spaces of a project by name."""
    declared = inspect.get_annotations(Project, eval_str=True)
    return {name: kind for name, kind in declared.items() if isinstance(kind, type) and issubclass(kind, Namespace)}


def verbs(namespace: str | None = None) -> dict[str, Callable[..., Answer]]:
    """Return the methods of a project, or of one of its name spaces, by the names of their commands."""
    kind = Project if namespace is None else namespaces()[namespace]
    methods = inspect.getmembers(kind, inspect.isfunction)
    own = {name: method for name, method in methods if not name.startswith("_") and name not in _NO_COMMANDS}
    return {name.replace("_", "-"): method for name, method in own.items()}


def command_of(words: tuple[str, ...], method: Callable[..., Answer]) -> click.Command:
    """Return the command that calls a method.

    Args:
        words: the names of the command, after `tidegate`.
        method: a method of `Project`, or of a name space that has the first of two words as its name.
    """
    documented = Documented.of(method)
    taken = [_Taken(parameter, documented) for parameter in _parameters(method)]
    names = {each.name: each.spelled for each in taken}
    added = ADDED.get(words, Added())
    params = {param.name: param for each in taken for param in each.params(names)}
    params |= {param.name: param for param in added.options}
    params |= {"log_format": log_option} if words in RUN else {}
    params |= {"engine": engine_option} if words in RUN or words in ENGINE else {}

    def function(screen: Screen, **given: Any) -> Answer | None:
        own = {option.name: given.pop(option.name) for option in added.options if option.name not in names}
        values = {name: value for each in taken for name, value in each.values(given)}

        def call(project: Project, **more: Any) -> Answer:
            return _bound(project, words)(**{**values, **more})

        if added.call is not None:
            return added.call(screen, call, {**values, **own})
        if words in RUN:
            with screen.running(values["pipeline"]) as project:
                return call(project)
        return call(screen.project())

    return of_screen(words[-1], function, list(params.values()), documented.help(taken, names))


def _parameters(method: Callable[..., Answer]) -> Iterator[inspect.Parameter]:
    for parameter in inspect.signature(method).parameters.values():
        if parameter.name != "self":
            # Return types are imported only for type checkers, but the types of parameters exist.
            yield parameter.replace(annotation=eval(parameter.annotation, method.__globals__))


def _bound(project: Project, words: tuple[str, ...]) -> Callable[..., Answer]:
    found: Any = project
    for word in words:
        found = getattr(found, word.replace("-", "_"))
    return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Taken:
    """A parameter of a method, and the argument or options that it becomes."""

    parameter: inspect.Parameter
    documented: Documented

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that the parameter accepts, except None."""
        annotation = self.parameter.annotation
        kinds = get_args(annotation) if _is_union(annotation) else (annotation,)
        return tuple(kind for kind in kinds if kind is not type(None))

    @property
    def default(self) -> Any:
        return self.parameter.default

    @property
    def is_argument(self) -> bool:
        """True for what stands on the command line without the name of an option."""
        return self.parameter.kind is not inspect.Parameter.KEYWORD_ONLY and not set(get_args(Moment)) <= set(
            self.kinds
        )

    @property
    def is_key(self) -> bool:
        return KeyText in self.kinds

    @property
    def is_many(self) -> bool:
        return Sequence[str] in self.kinds

    @property
    def zero_is_all(self) -> bool:
        """True for a number that may be None and has a default: on the command line, 0 stands for None."""
        return type(None) in get_args(self.parameter.annotation) and isinstance(self.default, int)

    @property
    def option(self) -> str:
        """The option's name, such as `--fill-gaps`."""
        return f"--{self.name.rstrip('_').replace('_', '-')}"

    @property
    def spelled(self) -> str:
        """How help names the parameter."""
        return self.name.upper() if self.is_argument else self.option

    def params(self, names: Mapping[str, str]) -> Iterator[click.Parameter]:
        """Yield the parameters of the command. Help names arguments of the method by `names`."""
        if StopRequest in self.kinds:
            return
        if EpochLimits in self.kinds:
            yield from _limit_options()
        elif self.is_argument:
            is_required, many = self.default is inspect.Parameter.empty, self.is_key or self.is_many
            options: dict[str, Any] = {"required": is_required, "nargs": -1 if many else 1}
            if not (is_required or many):
                # With a default, even None, click would not miss an argument that is required.
                options["default"] = self.default
            if self.is_many:
                options["metavar"] = f"{self.name.upper()}..."
            yield click.Argument([self.name], type=str, **options)
        else:
            yield self._option(names)

    def _option(self, names: Mapping[str, str]) -> click.Option:
        (kind, *others), default = self.kinds, self.default
        text = self.documented.option_help(self, names)
        shared: dict[str, Any] = {"required": default is inspect.Parameter.empty, "help": text}
        if bool in self.kinds:
            return click.Option([self.option, self.name], is_flag=True, help=text)
        if self.is_key:
            return click.Option([self.option, self.name], multiple=True, help=text)
        if get_origin(kind) is Iterable:
            if get_args(kind)[0] == KeyGiven:
                return click.Option([self.option, self.name], type=click.File(encoding="utf-8"), help=text)
            return click.Option([self.option, self.name], multiple=True, help=text)
        if default is not None and default is not inspect.Parameter.empty:
            shared |= {"default": default, "show_default": True}
        return click.Option([self.option, self.name], type=_type_of(kind, bool(others)), **shared)

    def values(self, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield the argument of the method for what the command line gave."""
        if EpochLimits in self.kinds:
            limits = {field.name: given[f"max_{field.name}"] for field in fields(EpochLimits)}
            limits["bytes"] = size_of(limits["bytes"], _LIMIT.format("bytes"))
            yield self.name, EpochLimits(**limits)
        elif StopRequest not in self.kinds:
            value = given[self.name]
            if self.is_key:
                value = KeyText(value) if value else self.default
            elif self.is_many and len(value) == 1:
                value = value[0]
            elif isinstance(value, Iterable) and hasattr(value, "read"):
                value = [KeyText(line.rstrip("\n").split("\t")) for line in value if line.rstrip("\n")]
            elif self.zero_is_all:
                value = value or None
            yield self.name, value


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, type(int | None))


def _type_of(kind: Any, is_mixed: bool) -> Any:
    """Return click's type for a type of Python. What may be a string, too, is parsed by the method."""
    if is_mixed:
        return str
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    if get_origin(kind) is Annotated:
        number, bound = get_args(kind)
        assert isinstance(bound, Bound)
        if number is int:
            return click.IntRange(min=int(bound.least), min_open=bound.exclusive)
        return click.FloatRange(min=bound.least, min_open=bound.exclusive)
    return click.Path(path_type=Path, dir_okay=False) if kind is Path else kind


def _limit_options() -> Iterator[click.Option]:
    documented = Documented.of(EpochLimits)
    for field in fields(EpochLimits):
        kind = str if field.name == "bytes" else click.IntRange(min=1)
        text = f"Limit on one epoch: {documented.arguments[field.name]}"
        yield click.Option([_LIMIT.format(field.name), f"max_{field.name}"], type=kind, help=text)


@dataclass(frozen=True)
class Documented:
    """A docstring: its text, and what it says about each argument."""

    text: str
    arguments: Mapping[str, str]

    @property
    def plain(self) -> str:
        """The text without backticks."""
        return _spelled(self.text, {})

    @classmethod
    def of(cls, documented: object) -> Documented:
        """Read the docstring of a function or class."""
        whole = inspect.getdoc(documented) or ""
        text, *sections = re.split(r"^(?=Args:|Raises:|>>>)", whole, flags=re.MULTILINE)
        args = next((section for section in sections if section.startswith("Args:")), "")
        entries = re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", args, re.MULTILINE | re.DOTALL)
        return cls(text.strip(), {name: " ".join(content.split()) for name, content in entries})

    def help(self, taken: Sequence[_Taken], names: Mapping[str, str]) -> str:
        """Return the help of a command: what the method does, and what its arguments are."""
        text = _spelled(re.sub(r"^Return |(?<=, and )return ", _as_show, self.text), names)
        arguments = [
            f"{each.spelled}: {_spelled(self.arguments[each.name], names)}{f' {_NULL}.' if each.is_key else ''}"
            for each in taken
            if each.is_argument and each.name != "pipeline" and each.name in self.arguments
        ]
        return "\n\n".join([text, *arguments])

    def option_help(self, taken: _Taken, names: Mapping[str, str]) -> str:
        """Return the help of an option from the docstring's words about the argument."""
        text = re.sub(r"^True to ", "", self.arguments.get(taken.name, ""))
        text = re.sub(r"[;.] None for ([^.;]*)", ". 0 for \\1" if taken.zero_is_all else ". Default: \\1", text)
        if taken.is_key:
            text = f"{text.rstrip('.')}; give the option once for each key column, in order; {_NULL}."
        elif get_origin(taken.kinds[0]) is Iterable and get_args(taken.kinds[0])[0] == KeyGiven:
            text = "a file with several keys (- for standard input): one on each line, with tabs between key columns."
        elif get_origin(taken.kinds[0]) is Iterable:
            text = f"{text.rstrip('.')}; may be repeated."
        text = _spelled(text, names)
        return text[:1].upper() + text[1:]


def _as_show(match: re.Match[str]) -> str:
    return "Show " if match[0][0] == "R" else "show "


def _spelled(text: str, names: Mapping[str, str]) -> str:
    """Return a text of a docstring as help says it: arguments by the names of options, and no backticks."""
    return re.sub(r"`([^`]+)`", lambda match: names.get(match[1], match[1]), text)
