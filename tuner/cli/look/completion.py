"""``completion`` and ``help``: what the parsers say of themselves, for a shell and for people."""

from __future__ import annotations

import argparse

from kernel_space.core.errors import InputError
from kernel_space.places import COMMAND

FUNCTION = "_svdquant_tune"
_BASH = """{function}() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" command="${{COMP_WORDS[1]}}" words
  case "$command" in
{cases}
    *) words="{default}" ;;
  esac
  if [[ $COMP_CWORD -eq 1 && $word != -* ]]; then words="{commands}"; fi
  if [[ $word == -* || $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W "$words" -- "$word"))
  else COMPREPLY=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F {function} {command}
"""


def completion_command(args: argparse.Namespace) -> int:
    """Source what it prints: ``source <(... completion bash)``."""
    print(script(args.shell), end="")
    return 0


def help_command(args: argparse.Namespace) -> int:
    """As ``--help`` of that command. Raises ``InputError`` for one that is none."""
    from tuner.cli.main import COMMANDS, DEFAULT_COMMAND, parser_of

    name = DEFAULT_COMMAND if args.command is None else args.command
    if name not in COMMANDS:
        raise InputError(f"unknown command {name!r:.80}; the commands are {', '.join(COMMANDS)}")
    print(parser_of(name).format_help(), end="")
    return 0


def script(shell: str) -> str:
    options = options_of_commands()
    return _fish(options) if shell == "fish" else _bash(options, zsh=shell == "zsh")


def options_of_commands() -> dict[str, dict[str, str]]:
    """Command -> its options and what each is for."""
    from tuner.cli.main import COMMANDS, parser_of

    return {name: _options(parser_of(name)) for name in COMMANDS}


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    found = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--"):
                found[option] = (action.help or "").partition(";")[0]
    return found


def _bash(options: dict[str, dict[str, str]], *, zsh: bool) -> str:
    cases = "\n".join(f'    {name}) words="{" ".join(found)}" ;;' for name, found in options.items())
    start = (
        "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    )
    return start + _BASH.format(
        function=FUNCTION,
        cases=cases,
        default=" ".join(options["tune"]),
        commands=" ".join(options),
        command=COMMAND,
    )


def _fish(options: dict[str, dict[str, str]]) -> str:
    from tuner.cli.main import COMMANDS

    none = f"not __fish_seen_subcommand_from {' '.join(options)}"
    lines = [
        f"complete -c {COMMAND} -n '{none}' -a {name} -d {_quoted(COMMANDS[name].summary)}"
        for name in options
    ]
    for name, found in options.items():
        seen = f"__fish_seen_subcommand_from {name}"
        when = f"{seen}; or {none}" if name == "tune" else seen
        lines += [
            f"complete -c {COMMAND} -n '{when}' -l {option[2:]} -d {_quoted(what)}"
            for option, what in found.items()
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("%(default)s", "the default").replace("\\", "").replace("'", "\\'") + "'"
