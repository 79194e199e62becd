# SPDX-License-Identifier: Apache-2.0
"""/openapi.json against the running server: requests that its schemas accept are accepted, answers and errors are what it says."""
import json
import sys

import jsonschema

from serving import Server, check, run_cases

HI = [{"role": "user", "content": "\u00abhi\u00bb"}]
CASES = [
    ("get", "/health", None), ("get", "/v1/models", None), ("get", "/v1/models/{id}", None), ("get", "/props", None), ("get", "/openapi.json", None),
    ("post", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "stop": ["x"], "logit_bias": {"5": -100}}),
    ("post", "/v1/chat/completions", {"messages": HI, "max_tokens": 5, "temperature": None, "response_format": {"type": "text"}}),
    ("post", "/v1/messages", {"messages": HI, "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "thinking": {"type": "disabled"}}),
    ("post", "/v1/messages/count_tokens", {"messages": HI}),
    ("post", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "max_output_tokens": 5, "store": False}),
    ("post", "/v1/embeddings", {"input": ["a", "b"]}), ("post", "/v1/embeddings", {"input": [65, 66], "encoding_format": "base64", "dimensions": 20}),
    ("post", "/tokenize", {"content": "x"}), ("post", "/detokenize", {"tokens": [65]}), ("post", "/apply-template", {"messages": HI}),
]


def documented():
    with Server.fake(ctx=4096) as s:
        status, headers, body = s.request("GET", "/openapi.json")
        check(status == 200 and headers["content-type"] == "application/json", headers)
        doc = json.loads(body)

        def validate(value, schema):
            jsonschema.Draft202012Validator({**schema, "components": doc["components"]}).validate(value)

        for method, path, body in CASES:
            op = doc["paths"][path][method]
            if body:
                validate(body, op["requestBody"]["content"]["application/json"]["schema"])
            status, _, answer = s.request(method.upper(), path.replace("{id}", "fake"), json.dumps(body).encode() if body else None, [("Content-Type", "application/json")])
            check(status == 200, lambda: f"{path}: {status} {answer[:300]}")
            validate(json.loads(answer), op["responses"]["200"]["content"]["application/json"]["schema"])
            if body:
                status, _, answer = s.post(b"[]", path)
                check(status == 400, f"{path}: {status}")
                validate(json.loads(answer), op["responses"]["default"]["content"]["application/json"]["schema"])


sys.exit(run_cases(documented))
