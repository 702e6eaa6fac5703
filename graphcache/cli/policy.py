"""``graphcache policy``: the configurations that ship, and checks of a user's own."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from graphcache.cli.output import AsJson, example, print_json, print_table

Source = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A shipped policy's name, or a YAML file.")]


def commands(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(no_args_is_help=True, help="List, show and check policies.")
    group.command("list", epilog=example("graphcache policy list"))(list_policies)
    group.command("show", epilog=example("graphcache policy show dynamic-dual > my.yaml"))(show)
    group.command("check", epilog=example("graphcache policy check policies/dynamic-dual.yaml"))(check)
    group.command("schema", epilog=example("graphcache policy schema > graphcache.schema.json"))(schema)
    app.add_typer(group, name="policy")


def list_policies(as_json: AsJson = False) -> None:
    """List the policies that ship, and what each is for."""
    from graphcache.config import shipped_policies

    found = {
        name: {"path": str(path), "purpose": path.read_text().partition("\n")[0].lstrip("# ")}
        for name, path in shipped_policies().items()
    }
    if as_json:
        print_json(found)
        return
    print_table("Policies", ["name", "purpose"], [(name, row["purpose"]) for name, row in found.items()])


def show(source: Source, as_json: AsJson = False) -> None:
    """Print a policy's YAML, or with --json every field with its default filled in."""
    from graphcache.config import load_config, policy_path
    from graphcache.config.document import read_text

    if as_json:
        print_json(load_config(source).model_dump(mode="json", by_alias=True))
    else:
        print(read_text(policy_path(source)), end="")


def check(source: Source) -> None:
    """Check a policy: exit 0 if it can be used, else 1 and a line per mistake on stderr."""
    from graphcache.config.build import check_config
    from graphcache.errors import ConfigError

    try:
        ladders = check_config(source)
    except ConfigError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(1) from None
    print(f"{source}: ok; sizes {', '.join(map(str, ladders.prefill))}")


def schema() -> None:
    """Print the JSON schema of policy files, for editors."""
    from graphcache.config import Config

    print_json(Config.model_json_schema(by_alias=True))
