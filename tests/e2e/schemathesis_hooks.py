# SPDX-License-Identifier: Apache-2.0
"""What tests/schemathesis.py adds to schemathesis: requests kept small, valid ones brought past what a schema cannot say, and a
check that a valid request is refused only for a reason of that kind.

Runs inside schemathesis. Writes how many cases got which status to the file named by CASES_LOG."""
import atexit
import collections
import json
import os
import re

import schemathesis
from schemathesis.core import NOT_SET

MAX_TOKENS = 3
COUNTS = collections.Counter()
IDS = ("prompt", "tokens", "stop_token_ids")

# A document has no words for these: what depends on the model, on another field, on an option, on a language inside a string.
BEYOND_A_SCHEMA = re.compile("|".join((
    r"\\u0000 is not accepted", r"too many values", r"nested too deeply",                                # RFC 8259 allows, docs/API.md does not
    r"is outside the vocabulary", r"token ids? from 0 to", r"but the context holds", r"no model of that name",
    r"needs tools", r"not among the tools", r"is not allowed by this server", r"two of them are named", r"is given twice",
    r"needs logprobs", r"only when stream is true", r"more than max_tokens", r"must equal n", r"two assistant messages",
    r"no \"content\" to continue", r"both constrain the output", r"both (true|given)", r"means the same", r"give one of them",
    r"grammar: ", r"schema: ", r"regex", r"arguments must be", r"is not among", r"at most \d+ choices", r"token_budget", r"chat_template_error",
    r"needs? the id of", r"the last message", r"no store", r"input: must not be empty", r"are not cut", r"expected a number of bytes", r"is required when", r"not supported here",
    r"n: must be between 1 and", r"redacted thinking",
)))


def parts(case):
    meta = case.meta
    return (meta.generation.mode.value if meta else "explicit"), case.body


def cap(value, most):
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else value


def small(body, path):
    """Few tokens; a value outside the schema stays outside."""
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens"):
        if name in body:
            body[name] = cap(body[name], MAX_TOKENS)
    for name, least in (("timeout", 60), ("t_max_predict_ms", 60000)):  # a deadline nobody could meet is a 503 by right
        if isinstance(body.get(name), (int, float)) and not isinstance(body[name], bool) and 0 < body[name] < least:
            body[name] = least
    if path in ("/v1/chat/completions", "/v1/completions"):
        if body.get("max_completion_tokens") is None and body.get("max_tokens") is None:
            body["max_tokens"] = MAX_TOKENS
    elif path == "/v1/responses" and body.get("max_output_tokens") is None:
        body["max_output_tokens"] = MAX_TOKENS


def in_vocabulary(value):
    return [in_vocabulary(v) for v in value] if isinstance(value, list) else cap(value, 200)


def acceptable(body):
    """A valid request less what its fields forbid each other."""
    body.pop("max_completion_tokens", None)
    body.pop("repeat_penalty", None)
    for name in ("min_tokens", "best_of", "n", "stream_options", "top_logprobs", "model", "lossy_experts", "dimensions"):
        body.pop(name, None)
    for name in IDS:
        if name in body:
            body[name] = in_vocabulary(body[name])
    if isinstance(body.get("logit_bias"), dict):
        body["logit_bias"] = {str(int(k) % 200): v for k, v in body["logit_bias"].items() if k.isascii()}
    if not body.get("tools") or isinstance(body.get("tool_choice"), dict):
        body.pop("tool_choice", None)
    for name in ("grammar", "guided_grammar", "regex", "guided_regex", "json_schema", "guided_json", "structured_outputs", "guided_choice", "choice"):
        if name in body and len(body) % 3:  # the others stay as they came
            del body[name]


@schemathesis.hook
def before_call(ctx, case, kwargs):
    mode, body = parts(case)
    if case.method in ("GET", "HEAD"):  # with content it is refused before a route is looked for (RFC 9110, 9.3.1)
        case.body = NOT_SET
    if not isinstance(body, dict):
        return
    small(body, case.operation.path)
    if mode == "positive" and sum(map(len, body)) % 4:  # a quarter meets the server as it is
        acceptable(body)


@schemathesis.hook
def after_call(ctx, case, response):
    COUNTS[parts(case)[0], response.status_code] += 1


@schemathesis.check
def refused_for_a_reason(ctx, response, case):
    """A request that the schema allows is accepted, or refused for something a schema cannot say."""
    mode, _ = parts(case)
    if mode != "positive" or response.status_code != 400:
        return
    message = json.loads(response.content)["error"]["message"]
    if not BEYOND_A_SCHEMA.search(message):
        raise AssertionError(f"the document allows what the server refuses: {message}")


@atexit.register
def write_counts():
    with open(os.environ["CASES_LOG"], "w") as f:
        json.dump([[mode, status, n] for (mode, status), n in sorted(COUNTS.items())], f)
