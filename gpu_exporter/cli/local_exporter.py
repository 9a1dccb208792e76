"""The exporter of this machine or container: where it listens, derived from the settings that it reads itself."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_exporter.app.greeting import base_url
from gpu_exporter.catalogue.dcgm_exporter.flags import FLAGS as DCGM_EXPORTER_FLAGS
from gpu_exporter.catalogue.dcgm_exporter.flags import translate
from gpu_exporter.cli.login import ca_option, password_option, refuse_half
from gpu_exporter.cli.options import Command, F
from gpu_exporter.config import ENV_PREFIX, Config, flag, variable
from gpu_exporter.io.file_access import FileWorker, read
from gpu_exporter.io.user_text import MAX_FILE_BYTES, Address
from gpu_exporter.model.errors import GpuExporterError, WrongUsage

if TYPE_CHECKING:
    from gpu_exporter.http.client import Remote

SETTINGS = ("address", "web_config_file")
FLAGS = tuple(f"--{flag(setting)}" for setting in fields(Config) if setting.name in SETTINGS)
LEAF = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class LocalCommand(Command):
    """A command that also takes the exporter's address and web configuration from dcgm-exporter's variables."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        variables = {theirs.env for theirs in DCGM_EXPORTER_FLAGS if theirs.setting in SETTINGS}
        theirs = {name: value for name, value in os.environ.items() if name in variables or name.startswith(ENV_PREFIX)}
        try:
            translated = translate((), theirs).arguments
        except ValueError as error:
            raise click.UsageError(str(error), ctx) from error
        known = [argument for argument in translated if argument.partition("=")[0] in FLAGS]
        return super().parse_args(ctx, [*known, *args])


def remote_options(function: F) -> F:
    """Add options for the URL of a running exporter and the login, besides the settings `token_file` and SETTINGS."""
    for option in (
        ca_option,
        password_option,
        click.option("--user", default="", help="User name to log in with, instead of the token."),
        click.option(
            "--url",
            envvar=variable("url"),
            show_envvar=True,
            help="URL of the running exporter. Default: this machine, with the port of the exporter's setting --address"
            " and the certificate of its --web.config.file.",
        ),
    ):
        function = option(function)
    return function


def remote_of(
    *, url: str | None, address: Address, web_config_file: Path | None, ca_file: Path | None, **login: Any
) -> Remote:
    """Return the exporter at `url`, else that of this environment. Its own certificate names no CA and no localhost."""
    from gpu_exporter.http.client import Remote

    refuse_half(login["user"], login["password_file"])
    if url:
        return Remote(url, ca_file=ca_file, **login)
    url, certificate = url_and_certificate(address, web_config_file)
    return Remote(url, ca_file=ca_file, certificate=b"" if ca_file else certificate, **login)


def url_and_certificate(address: Address, web_config_file: Path | None) -> tuple[str, bytes]:
    """Return the exporter's URL and its certificate, as `certificate` does. Raises GpuExporterError."""
    if not address.port:
        raise WrongUsage(f"--address {address} does not say on which port the exporter listens; give its --url")
    leaf = certificate(web_config_file)
    # Not localhost, which may be the other family, where another program may listen and get the token.
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)
    return base_url(Address(host, address.port), address.port, tls=bool(leaf)), leaf


def certificate(web_config_file: Path | None) -> bytes:
    """Return the certificate (DER) that the exporter serves with; empty without TLS. Raises GpuExporterError."""
    if web_config_file is None:
        return b""
    from gpu_exporter.http.web_config import parse

    contents = partial(read, most=MAX_FILE_BYTES)
    fix = "check --web.config.file, and run this as the exporter's user or as root"
    try:
        tls = FileWorker("web-config-file").call(
            lambda: parse(contents(web_config_file), web_config_file.parent, contents).tls
        )
        return _leaf(tls.cert) if tls else b""
    except OSError as error:
        raise GpuExporterError(f"web config {web_config_file}: {error.strerror or error}", fix=fix) from error
    except ValueError as error:
        raise GpuExporterError(f"web config {web_config_file}: {' '.join(str(error).split())}", fix=fix) from error


def _leaf(pem: bytes) -> bytes:
    """Return the first certificate, which is the server's own, in DER. Raises ValueError."""
    import ssl

    found = LEAF.search(pem)
    if not found:
        raise ValueError("tls_server_config: cert: contains no PEM block that begins with -----BEGIN CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(found[0].decode("ascii", "replace"))
