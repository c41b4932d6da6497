"""The plugin that Airflow finds by its entry point: a read-only page of the project in the navigation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/tidegate"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


async def page_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the page as an ASGI application.

    It is imported on the first request, because every Airflow process imports this module.
    """
    from tidegate.pipelines.airflow.page import app

    await app(scope, receive, send)


class TidegatePlugin(AirflowPlugin):
    """The plugin: one application, and its entry in Airflow's navigation."""

    name = "tidegate"
    fastapi_apps = [{"app": page_app, "url_prefix": PREFIX, "name": "Tidegate"}]  # noqa: RUF012 (Airflow's declaration)
    # An iframe in the navigation; `href` is relative, so that it works behind a proxy's prefix.
    external_views = [  # noqa: RUF012
        {"name": "Tidegate", "href": f"{PREFIX.strip('/')}/", "destination": "nav", "url_route": "tidegate"}
    ]
