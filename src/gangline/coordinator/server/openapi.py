# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document of the coordinator's HTTP side: made from the structs that are sent."""

from __future__ import annotations

from typing import Any

import msgspec

from gangline.protocol.joining import (
    EnterAnswer,
    InvitationAnswer,
    InvitationRequest,
    InvitationStatus,
    WithdrawRequest,
)
from gangline.protocol.live import CodeAnswer
from gangline.protocol.status import (
    BusyRequest,
    CalledBack,
    CertificateAnswer,
    CertificateRequest,
    ExcludeRequest,
    LeaveRequest,
    PauseRequest,
    PlainRequest,
    ReplanRequest,
    Status,
    SurveyStatus,
    SyncRequest,
)
from gangline.protocol.streaming import EventsAnswer, EventsRequest

_REFUSALS = {
    "400": "what was sent cannot be read",
    "401": "the token is missing or wrong",
    "403": "the token is that of another role",
    "408": "the request came too slowly",
    "409": "it cannot be done; the text says why",
    "410": "the invitation is used up, expired or withdrawn",
    "413": "the request is too large",
    "429": "too many requests",
    "507": "the run folder's disk is full",
}

_NEEDS_SECRET = "Needs the secret of an invitation as its bearer token."


def document() -> dict[str, Any]:
    """The document, as it is served at /openapi.json."""
    kinds = (
        Status,
        BusyRequest,
        LeaveRequest,
        ReplanRequest,
        SyncRequest,
        ExcludeRequest,
        PauseRequest,
        PlainRequest,
        CodeAnswer,
        SurveyStatus,
        CertificateRequest,
        CertificateAnswer,
        EventsRequest,
        EventsAnswer,
        EnterAnswer,
        InvitationRequest,
        InvitationAnswer,
        InvitationStatus,
        WithdrawRequest,
        CalledBack,
    )
    _, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "gangline coordinator", "version": "1"},
        "security": [{"token": []}],
        "paths": {
            "/openapi.json": {"get": _operation("This document.", role="observer")},
            "/api/status": {
                "get": _operation("Who takes part, and how far.", role="observer", answer="Status")
            },
            "/metrics": {
                "get": _operation(
                    "The same as metrics that Prometheus reads.", role="observer", is_text=True
                )
            },
            "/api/leave": {
                "post": _operation(
                    "Asks a worker to leave.", role="operator", request="LeaveRequest"
                )
            },
            "/api/replan": {
                "post": _operation(
                    "Asks for another structure.", role="operator", request="ReplanRequest"
                )
            },
            "/api/sync": {
                "post": _operation(
                    "Holds groups that train at their own pace together in another way.",
                    role="operator",
                    request="SyncRequest",
                )
            },
            **_order_paths(),
            "/api/survey": {
                "get": _operation(
                    "How far the survey of links is.", role="observer", answer="SurveyStatus"
                ),
                "post": _operation(
                    "Has workers measure the links between them.",
                    role="operator",
                    answer="SurveyStatus",
                ),
            },
            "/api/busy": {
                "post": _operation(
                    "A worker computes, and cannot say so itself.",
                    role="worker",
                    request="BusyRequest",
                )
            },
            "/api/certificate": {
                "post": _operation(
                    "Signs a certificate for the links between workers.",
                    role="worker",
                    request="CertificateRequest",
                    answer="CertificateAnswer",
                )
            },
            "/api/events": {
                "post": _operation(
                    "Takes the event logs of a machine that joined.",
                    role="worker",
                    request="EventsRequest",
                    answer="EventsAnswer",
                )
            },
            **_invitation_paths(),
            "/api/reach": {
                "get": _operation(
                    "Calls back who asks, at the address that it is seen from and the `port` of the "
                    "query.",
                    role="observer",
                    answer="CalledBack",
                )
            },
        },
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _order_paths() -> dict[str, Any]:
    asked = {
        "exclude": ("Keeps a worker out until it is taken back, or takes it back.", ExcludeRequest),
        "pause": ("Has the job stand still between two steps, or go on.", PauseRequest),
        "checkpoint": ("Has a checkpoint written now.", PlainRequest),
        "end": ("Has everybody leave; the last one writes a checkpoint.", PlainRequest),
    }
    paths = {
        f"/api/{name}": {"post": _operation(text, role="operator", request=kind.__name__)}
        for name, (text, kind) in asked.items()
    }
    made = _operation("A code that lets one browser in.", role="observer", answer="CodeAnswer")
    return {**paths, "/api/dashboard/code": {"post": made}}


def _invitation_paths() -> dict[str, Any]:
    return {
        "/api/code": {"get": _operation("The list of the job's code; or null.", role="worker")},
        "/api/code/files": {
            "get": _operation("What is in its files, one after the other.", role="worker")
        },
        "/api/enter": {
            "post": _operation(
                "Gives the secret of an invitation, in place of a token, for what workers need.",
                role="guest",
                answer="EnterAnswer",
            )
        },
        "/api/invitations": {
            "get": _operation("All invitations: a list.", role="operator", is_list=True),
            "post": _operation(
                "Makes an invitation.",
                role="operator",
                request="InvitationRequest",
                answer="InvitationAnswer",
            ),
        },
        "/api/invitations/withdraw": {
            "post": _operation(
                "Has an invitation let nobody in any more.",
                role="operator",
                request="WithdrawRequest",
                answer="InvitationStatus",
            )
        },
    }


def _operation(
    summary: str,
    *,
    role: str,
    request: str | None = None,
    answer: str | None = None,
    is_list: bool = False,
    is_text: bool = False,
) -> dict[str, Any]:
    answered: dict[str, Any] = {"type": "object"} if answer is None else _reference(answer)
    if is_list:
        answered = {"type": "array"}
    media = "application/json"
    if is_text:
        media, answered = "text/plain", {"type": "string"}
    responses: dict[str, Any] = {
        "200": {"description": "done", "content": {media: {"schema": answered}}}
    }
    for code, text in _REFUSALS.items():
        plain = {"text/plain": {"schema": {"type": "string"}}}
        responses[code] = {"description": text, "content": plain}
    operation: dict[str, Any] = {
        "summary": summary,
        "description": _NEEDS_SECRET
        if role == "guest"
        else f"Needs the token of the role {role}, or of one above it.",
        "responses": responses,
    }
    if request is not None:
        content = {"application/json": {"schema": _reference(request)}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}
