"""The page in Airflow: pipelines, watermark and lag, snapshots and savepoints, open windows, quality.

It reads through the same code as the command line and changes nothing. Airflow mounts plugin applications without a
login, so every path here requires one: 401 without it, 403 without permission to read the pipeline's DAGs.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.configuration import conf
from airflow.models.dag import DagModel, DagTag
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse

from tidegate.pipelines.definition.config import ENVIRONMENT, find_config
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.observe.inspect.overview import docs_page, pipeline_names, pipeline_overview, stored_page
from tidegate.pipelines.observe.inspect.summary import Summaries
from tidegate.pipelines.observe.report.plain_text import look
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import command, with_remedies
from tidegate.pipelines.storage.artifacts import page_name, report_name
from tidegate.pipelines.storage.credentials import masked

_PAGE = Path(__file__).parent / "page.html"
_LOOK = "/* look */"
"""Placeholder in the page for the shared style sheet."""

_LINKS = Path(__file__).parent / "links.js"
_NO_STORE = {"Cache-Control": "no-store"}
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'"
)
_NO_GUESSES = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}
# Reports and Data Docs have no scripts of their own, and text from the data must not add any.
_NO_SCRIPT = {**_NO_STORE, **_NO_GUESSES, "Content-Security-Policy": _POLICY}

Name = Annotated[str, PathParameter(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,199}$")]

MOST = 50
"""Largest number of pipelines in one request of the page: as many as are on a large screen."""

SUMMARIES = Summaries()
_places: dict[str, tuple[Any, ShownPipeline]] = {}
"""Pipelines by name, each with the time of the DAG from which it was read."""

app = FastAPI(title="Tidegate", dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None)


@app.exception_handler(TidegateError)
def not_readable(request: Request, error: TidegateError) -> JSONResponse:
    """Answer 503 if tidegate.toml, or the object store of reports and Data Docs, can't be read."""
    return JSONResponse({"detail": _told(error)}, 503, headers=_NO_STORE)


def _told(error: TidegateError) -> str:
    """Return the message of an error, with its remedies as commands."""
    return masked(with_remedies(error.message, error.remedies, command))


def config_file() -> Path:
    """Return the path of tidegate.toml: the one that TIDEGATE_CONFIG names, or the one next to or above the DAGs.

    Raises:
        HTTPException: 503 if there is no such file; the message says what to set.
    """
    try:
        return find_config(None if ENVIRONMENT in os.environ else Path(conf.get("core", "dags_folder")))
    except UsageError as error:
        raise HTTPException(503, _told(error)) from error


@dataclass(frozen=True, slots=True)
class ShownPipeline:
    """A pipeline of the page: its name there, which is the prefix of its DAG ids, and its project and name in it."""

    name: str
    config: Path
    pipeline: str


def names_in_airflow() -> list[str]:
    """Return the names of the pipelines whose stream has a DAG in Airflow."""
    with create_session() as session:
        tagged = session.query(DagTag.dag_id).join(DagModel, DagModel.dag_id == DagTag.dag_id)
        found = tagged.filter(DagTag.name == "tidegate", DagModel.is_stale.is_(False))
        return sorted(dag.removesuffix("__stream") for (dag,) in found if dag.endswith("__stream"))


def stream_in_airflow(name: str) -> Any:
    """Return the DAG of a pipeline's stream in Airflow, or None if there is none."""
    return SerializedDagModel.get_dag(f"{name}__stream")


def names() -> list[str]:
    """Return the names of the pipelines: of every project with DAGs in Airflow, or of the one configured here."""
    return names_in_airflow() or pipeline_names(config_file())


def streams_in_airflow(names: Sequence[str]) -> dict[str, Any]:
    """Return the pipelines that have a stream's DAG, each with the time at which its newest version was written."""
    dags = [f"{name}__stream" for name in names]
    with create_session() as session:
        query = session.query(SerializedDagModel.dag_id, SerializedDagModel.last_updated)
        # A DAG has a row for each of its versions.
        versions = sorted(query.filter(SerializedDagModel.dag_id.in_(dags)), key=lambda row: row[1])
        return {dag.removesuffix("__stream"): at for dag, at in versions}


def places_of(names: Sequence[str]) -> dict[str, ShownPipeline | str]:
    """Return the pipelines with these names; for a name without a pipeline, the reason.

    A DAG is read again only when it has changed.
    """
    written, places = streams_in_airflow(names), dict[str, ShownPipeline | str]()
    for name in names:
        mark = written.get(name)
        if mark is not None and _places.get(name, (None,))[0] == mark:
            places[name] = _places[name][1]
        elif (place := _place_in_airflow(name)) is not None:
            places[name] = place
            _places[name] = (mark, place)
    if others := [name for name in names if name not in places]:
        places |= _places_here(others)
    return places


def _place_in_airflow(name: str) -> ShownPipeline | None:
    dag = stream_in_airflow(name)
    # An unrelated DAG may have such an id, and such a task.
    task: Any = dag.get_task("stream") if dag is not None and dag.has_task("stream") else None
    config = getattr(task, "config", None)
    return ShownPipeline(name, Path(config), str(task.pipeline)) if config else None


def _places_here(names: Sequence[str]) -> dict[str, ShownPipeline | str]:
    """Return the pipelines of these names in the project that is configured here."""
    try:
        file = config_file()
        known = set(pipeline_names(file))
    except HTTPException as error:
        return dict.fromkeys(names, str(error.detail))
    except TidegateError as error:
        return dict.fromkeys(names, _told(error))
    return {name: ShownPipeline(name, file, name) if name in known else f"no pipeline {name}" for name in names}


def may_read(pipeline: str, user: Any) -> bool:
    """Return True if a user may read the DAGs of a pipeline."""
    return get_auth_manager().is_authorized_dag(method="GET", details=_dag_of(pipeline, "stream"), user=user)


def may_restart(pipeline: str, user: Any) -> bool:
    """Return True if a user may trigger a restart of a pipeline's stream."""
    return get_auth_manager().is_authorized_dag(
        method="POST",
        access_entity=DagAccessEntity.RUN,
        details=_dag_of(pipeline, "restart"),
        user=user,
    )


def _dag_of(pipeline: str, kind: str) -> DagDetails:
    """Return a DAG of a pipeline, with its team if Airflow has teams. Other teams may not see it."""
    dag = f"{pipeline}__{kind}"
    has_teams = conf.getboolean("core", "multi_team", fallback=False)
    return DagDetails(id=dag, team_name=DagModel.get_team_name(dag) if has_teams else None)


def readable(pipeline: Name, user: GetUserDep) -> ShownPipeline:
    """Return a pipeline that the user may read.

    Raises:
        HTTPException: 403 without permission, even for a pipeline that does not exist; 404 with permission for a
            pipeline that does not exist.
    """
    if not may_read(pipeline, user):
        raise HTTPException(403, _no_permission(pipeline))
    place = places_of([pipeline])[pipeline]
    if isinstance(place, str):
        raise HTTPException(404, place)
    return place


def _no_permission(pipeline: str) -> str:
    return f"no permission to read the DAGs of {pipeline}"


Readable = Annotated[ShownPipeline, Depends(readable)]


@app.get("/")
def page() -> HTMLResponse:
    """Serve the page. Its script requests the data."""
    text, policy = _page_and_policy()
    return HTMLResponse(text, headers={**_NO_STORE, **_NO_GUESSES, "Content-Security-Policy": policy})


@app.get("/links.js")
def links() -> FileResponse:
    """Serve the script that makes the page's links open in Airflow's window."""
    return FileResponse(_LINKS, media_type="text/javascript", headers={**_NO_STORE, **_NO_GUESSES})


@app.get("/pipelines")
def pipelines(request: Request, user: GetUserDep) -> Response:
    """Return the names of the pipelines that the user may read."""
    answer = _Answer(request)
    return answer([name for name in names() if may_read(name, user)])


@app.get("/summaries")
def summaries(
    request: Request, user: GetUserDep, name: Annotated[list[Name], Query(min_length=1, max_length=MOST)]
) -> Response:
    """Return the lines of pipelines. An error, such as a missing permission, appears in the line of its pipeline."""
    answer = _Answer(request)
    places = places_of([each for each in name if may_read(each, user)])
    found = [place for place in places.values() if isinstance(place, ShownPipeline)]
    lines = dict(zip(found, SUMMARIES.of([(place.config, place.pipeline) for place in found]), strict=True))
    return answer([_line(each, places.get(each, _no_permission(each)), lines, user) for each in name])


def _line(
    name: str, place: ShownPipeline | str, lines: dict[ShownPipeline, dict[str, Any]], user: Any
) -> dict[str, Any]:
    if isinstance(place, str):
        return {"pipeline": name, "error": place, "may_restart": False}
    return {**lines[place], "pipeline": name, "may_restart": may_restart(name, user)}


@app.get("/pipelines/{pipeline}")
def overview(request: Request, pipeline: Readable, user: GetUserDep) -> Response:
    """Return the details of a pipeline, and whether the user may restart it."""
    shown = {"pipeline": pipeline.name, "may_restart": may_restart(pipeline.name, user)}
    answer = _Answer(request)
    try:
        return answer({**pipeline_overview(pipeline.config, pipeline.pipeline), **shown})
    except UsageError as error:
        # The project's tidegate.toml is not on this host, or no longer names the pipeline.
        return answer({"error": _told(error), **shown})


class _Answer:
    """Response to a poll: its processor time, and the content unless the page already has it.

    The page polls less often if its answers cost much. The time is that of all threads of this process, because the
    libraries that read tables have their own.
    """

    def __init__(self, request: Request) -> None:
        self._known = request.headers.get("If-None-Match")
        self._began = time.process_time()

    def __call__(self, content: Any) -> Response:
        body = json.dumps(content, separators=(",", ":")).encode()
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        took = f"cpu;dur={(time.process_time() - self._began) * 1000:.1f}"
        headers = {**_NO_STORE, "ETag": tag, "Server-Timing": took}
        if self._known == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)


@app.get("/pipelines/{pipeline}/reports/{epoch:int}")
def report(pipeline: Readable, epoch: Annotated[int, PathParameter(ge=1)]) -> HTMLResponse:
    """Serve the run report of an epoch."""
    text = stored_page(pipeline.config, pipeline.pipeline, report_name(pipeline.pipeline, epoch))
    if text is None:
        raise HTTPException(
            404, with_remedies(f"no report of epoch {epoch}", [Remedy(Act.REPORT, pipeline.pipeline, epoch)], command)
        )
    return HTMLResponse(text, headers=_NO_SCRIPT)


@app.get("/pipelines/{pipeline}/reports/{page}")
def show_stored_page(
    pipeline: Readable, page: Annotated[str, PathParameter(pattern=r"^[a-z][a-z0-9-]{0,100}\.html$")]
) -> HTMLResponse:
    """Serve a page next to the run reports, such as the lateness curve."""
    text = stored_page(pipeline.config, pipeline.pipeline, page_name(pipeline.pipeline, page))
    if text is None:
        raise HTTPException(404, with_remedies("no such page", [Remedy(Act.LATENESS_PAGE, pipeline.pipeline)], command))
    return HTMLResponse(text, headers=_NO_SCRIPT)


@app.get("/pipelines/{pipeline}/checks/{page}")
def checks(pipeline: Readable, page: Annotated[str, PathParameter(pattern=r"^[a-z0-9-]{1,60}\.html$")]) -> HTMLResponse:
    """Serve a page of the Data Docs: `index.html`, or the page of one check."""
    text = docs_page(pipeline.config, pipeline.pipeline, page)
    if text is None:
        raise HTTPException(404, with_remedies("no such page", [Remedy(Act.CHECK, pipeline.pipeline)], command))
    return HTMLResponse(text, headers=_NO_SCRIPT)


@cache
def _page_and_policy() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy: the page runs only its own script."""
    text = _PAGE.read_text(encoding="utf-8").replace(_LOOK, look())
    script = text.partition("<script>")[2].partition("</script>")[0]
    digest = b64encode(sha256(script.encode()).digest()).decode()
    return text, f"{_POLICY}; script-src 'sha256-{digest}'; connect-src 'self'"
