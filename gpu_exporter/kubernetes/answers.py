"""The answers of the API server: decoded, or the failure that they mean."""

from __future__ import annotations

from http.client import HTTPResponse
from typing import TypeVar

from gpu_exporter.io.decoding import json_as, printable
from gpu_exporter.kubernetes.objects import Event, EventHead, Failure, FailureEvent
from gpu_exporter.model.lookup import LookupFailed

T = TypeVar("T")

MOST_FAILURE_BYTES = 1 << 16


def refused(response: HTTPResponse, path: str, method: str = "GET") -> LookupFailed:
    """Return the failure that an answer other than 200 and 201 means."""
    reasons = {
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        409: "conflict",
        410: "gone",
        422: "conflict",  # the `test` of a JSON patch failed
        429: "too_many_requests",
    }
    verbs = {"GET": "verbs list and watch", "POST": "verb create", "PUT": "verb update", "PATCH": "verb patch"}[method]
    causes = {
        401: ("the API server rejects the token", "check that the service account still exists"),
        403: ("forbidden", f"the service account needs the {verbs} (a ClusterRole and its binding)"),
        409: ("the object has changed since it was read", ""),
        422: ("the object has changed since it was read, or it is invalid", ""),
        410: ("the resource version is too old; gpu-exporter lists again", ""),
    }
    reason = reasons.get(response.status, f"http_{response.status}")
    cause, fix = causes.get(response.status) or (_why(response, method), "")
    after = response.headers.get("Retry-After", "")
    retry_after = float(after) if after.isdecimal() and len(after) < 6 else 0.0
    return LookupFailed(reason, f"API server: {path}: {response.status}: {cause}", fix=fix, retry_after=retry_after)


def _why(response: HTTPResponse, method: str) -> str:
    """Return why the server refuses a request; for a write, such as an eviction, in its own words."""
    try:
        message = json_as(Failure, response.read(MOST_FAILURE_BYTES)).get("message") if method != "GET" else ""
    except ValueError:
        message = ""
    return printable(message or response.reason, 200)


def too_large(path: str, why: str) -> LookupFailed:
    """Return the failure of an answer that exceeds a limit."""
    return LookupFailed("too_large", f"API server: {path}: {why}", fix="check KUBERNETES_SERVICE_HOST")


def decoded(body: bytes, kind: type[T], path: str) -> T:
    """Return an answer of the server as `kind`. Raises LookupFailed if it is malformed."""
    try:
        return json_as(kind, body)
    except ValueError as error:
        raise LookupFailed("malformed", f"API server: {path}: unexpected answer: {error}") from error


def event(line: bytes, path: str) -> Event:
    """Return an event. Raises LookupFailed if it is an ERROR event, or malformed."""
    if decoded(line, EventHead, path)["type"] != "ERROR":
        return decoded(line, Event, path)
    failure = decoded(line, FailureEvent, path)["object"]
    reason = "gone" if failure.get("code") == 410 else "refused"
    raise LookupFailed(reason, f"API server: watch ended: {printable(failure.get('message', ''), 200)}")
