# SPDX-License-Identifier: Apache-2.0
"""Requests to /v1/completions and their one right answer: (raw body or fields, status, param, code). Used by test_completions.py over
a connection each, and by test_fixtures.py cut at every position. Not a test itself."""

P = {"prompt": "hi"}
BODIES = [  # raw body, status, param, code
    (b"", 400, None, "invalid_json"), (b"{", 400, None, "invalid_json"), (b"[]", 400, None, "invalid_json"), (b'"x"', 400, None, "invalid_json"),
    (b"null", 400, None, "invalid_json"), (b"{}", 400, "prompt", "invalid_value"), (b"\xef\xbb\xbf" + b'{"prompt":"a"}', 400, None, "invalid_json"),
    (b'{"prompt":"a"} x', 400, None, "invalid_json"), ('{"prompt":"a"}'.encode("utf-16"), 400, None, "invalid_json"),
    (b'{"prompt":"\xff"}', 400, None, "invalid_json"), (b'{"prompt":"a\x00b"}', 400, None, "invalid_json"), (b'{"prompt":"\\u0000"}', 400, None, "invalid_json"),
    (b'{"prompt":"\\ud800"}', 400, None, "invalid_json"), (b'{"prompt":"a","model":"fake","model":"fake"}', 400, "model", "invalid_value"),
    (b'{"prompt":"a","Model":"other"}', 200, None, None), (b"[" * 100000, 400, None, "invalid_json"), (b'{"prompt":"a","x":01}', 400, None, "invalid_json"),
    (b'{"prompt":"a","x":[' + b"0," * 600000 + b"0]}", 400, None, "invalid_json"),
]
FIELDS = [  # fields, status, param, code
    ({"prompt": None}, 400, "prompt", "invalid_value"), ({"prompt": ""}, 200, None, None), ({"prompt": []}, 400, "prompt", "invalid_value"),
    ({"prompt": [""]}, 200, None, None), ({"prompt": ["a", ""]}, 200, None, None), ({"prompt": [1]}, 200, None, None), ({"prompt": [[1], [2]]}, 200, None, None),
    ({"prompt": [1, "a"]}, 400, "prompt", "invalid_value"), ({"prompt": [-1]}, 400, "prompt", "invalid_value"), ({"prompt": [266]}, 400, "prompt", "invalid_value"),
    ({"prompt": [1.5]}, 400, "prompt", "invalid_value"), ({"prompt": [[]]}, 400, "prompt", "invalid_value"), ({"prompt": ["x"] * 10000}, 400, "prompt", "invalid_value"),
    ({"prompt": {"a": 1}}, 400, "prompt", "invalid_value"), ({**P, "model": "nope"}, 404, "model", "model_not_found"), ({**P, "model": ""}, 200, None, None),
    ({**P, "model": "fake"}, 200, None, None), ({**P, "max_tokens": -1}, 400, "max_tokens", "invalid_value"), ({**P, "max_tokens": 0}, 200, None, None),
    ({**P, "max_tokens": 2**31}, 400, "max_tokens", "invalid_value"), ({**P, "max_tokens": 2**53}, 400, "max_tokens", "invalid_value"), ({**P, "max_tokens": None}, 200, None, None),
    ({**P, "max_tokens": 3, "max_completion_tokens": 4}, 400, "max_completion_tokens", "invalid_value"), ({**P, "max_tokens": 1022}, 400, "max_tokens", "context_length_exceeded"),
    ({"prompt": [5] * 1023}, 200, None, None), ({"prompt": [5] * 1024}, 400, "prompt", "context_length_exceeded"), ({"prompt": [5] * 1024, "max_tokens": 0}, 200, None, None),
    ({"prompt": "x" * 1024}, 400, "prompt", "context_length_exceeded"), ({"prompt": "x" * 4000000}, 400, "prompt", "context_length_exceeded"),
    ({**P, "stop": ""}, 400, "stop", "invalid_value"), ({**P, "stop": [""]}, 400, "stop", "invalid_value"), ({**P, "stop": ["a", "a"]}, 200, None, None),
    ({**P, "stop": [None]}, 400, "stop", "invalid_value"), ({**P, "stop": list("abcdefghijklmnop")}, 200, None, None), ({**P, "stop": list("abcdefghijklmnopq")}, 400, "stop", "invalid_value"),
    ({**P, "stop": "x" * (1 << 20)}, 400, "stop", "invalid_value"), ({**P, "suffix": "x"}, 400, "suffix", "invalid_value"), ({**P, "best_of": 2}, 400, "best_of", "invalid_value"),
    ({**P, "n": 2, "best_of": 1}, 400, "best_of", "invalid_value"), ({**P, "n": 2, "best_of": 2}, 200, None, None), ({**P, "n": 9}, 400, "n", "invalid_value"),
    ({**P, "logprobs": True}, 400, "logprobs", "invalid_value"), ({**P, "logprobs": 21}, 400, "logprobs", "invalid_value"), ({**P, "logit_bias": {"266": 1}}, 400, "logit_bias", "invalid_value"),
    ({**P, "temperature": "1"}, 400, "temperature", "invalid_value"), ({**P, "stream_options": {"include_usage": 1}, "stream": True}, 400, "stream_options.include_usage", "invalid_value"),
    ({**P, "user": 5, "metadata": {"a": [1]}, "store": True, "no_such_field": {}}, 200, None, None), ({**P, "seed": 2**63 - 1}, 200, None, None), ({**P, "seed": 2**63}, 400, "seed", "invalid_value"),
    ({**P, "max_tokens": 1000, "logprobs": 20, "n": 8, "echo": True, "prompt": ["a"] * 64}, 400, "prompt", "invalid_value"),
]
