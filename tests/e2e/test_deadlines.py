# SPDX-License-Identifier: Apache-2.0
"""Time: deadlines, priorities, refusals before anything is computed, and whether what Retry-After says is what a client sees."""
import json
import sys
import tempfile
import threading
import time

import openai

from serving import Server, check, parse_events, run_cases

ROOT, GUEST = "root-0123456789abcdef", "guest-0123456789abcdef"
STEP_S = 0.004


def fields(n=50, **more):
    return {"prompt": "a b", "max_tokens": n, "ignore_eos": True, "cache_prompt": False, **more}


class Load:
    """So many calls at once, each on a connection and a thread of its own; results are (status, headers, answer, seconds)."""

    def __init__(self, s, n_calls, headers=(), **more):
        self.s, self.headers, self.more, self.results = s, headers, more, []
        self.threads = [threading.Thread(target=self.one) for _ in range(n_calls)]
        for t in self.threads:
            t.start()

    def one(self):
        self.results.append(ask(self.s, self.headers, **self.more))

    def join(self):
        for t in self.threads:
            t.join()
        return self.results


def ask(s, headers=(), path="/v1/completions", **more):
    start = time.monotonic()
    body = json.dumps(more if path != "/v1/completions" else fields(**more)).encode()
    status, got, answer = s.request("POST", path, body, [("Content-Type", "application/json"), *headers])
    return status, got, answer if more.get("stream") else json.loads(answer), time.monotonic() - start


def busy_server(*flags, places=2, **own):
    """Knows how long its requests take: some have ended."""
    s = Server.fake("--max-running", str(places), *flags, step_us=int(STEP_S * 1e6), **own)
    for _, _, answer, _ in Load(s, 4 * places).join():
        check("error" not in answer, answer)
    return s


def wait_running(s, n, headers=()):
    while (m := s.metrics(headers))["moed_requests_running"] + m["moed_requests_queued"] < n:
        time.sleep(0.005)


def running_ones_end_as_cut():
    with Server.fake(step_us=int(STEP_S * 1e6)) as s:
        for more in ({"timeout": 0.3}, {"t_max_predict_ms": 200}):
            status, _, answer, took = ask(s, n=900, **more)
            choice = answer["choices"][0]
            check(status == 200 and choice["finish_reason"] == "length" and took < 2, answer)
            check(0 < answer["usage"]["completion_tokens"] < 900 and answer["timings"]["predicted_n"] == answer["usage"]["completion_tokens"], answer)
        events = s.stream(**fields(n=900, timeout=0.3))
        check(events[-1]["choices"][0]["finish_reason"] == "length", events[-1])
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 900, "ignore_eos": True, "timeout": 0.3}
        check(ask(s, path="/v1/chat/completions", **chat)[2]["choices"][0]["finish_reason"] == "length", "chat")
        status, _, answer, _ = ask(s, path="/v1/messages", **chat)
        check(status == 200 and answer["stop_reason"] == "max_tokens", answer)
        check(s.metrics()['moed_requests_finished_total{reason="deadline"}'] == 5, "the metric")


def option_bounds_the_field():
    with Server.fake("--request-timeout", "300ms", step_us=int(STEP_S * 1e6)) as s:
        for more in ({}, {"timeout": 60}):
            status, _, answer, took = ask(s, n=900, **more)
            check(status == 200 and answer["choices"][0]["finish_reason"] == "length" and took < 2, answer)
        check(ask(s, n=900, timeout=0.05)[2]["usage"]["completion_tokens"] < 30, "a shorter one holds")


def late_ones_are_not_computed():
    with busy_server() as s:
        load = Load(s, 12)
        wait_running(s, 12)
        prompt_tokens = s.metrics()["moed_prompt_tokens_total"]
        status, headers, answer, took = ask(s, timeout=0.05)  # the wait is six times 0.2 s: refused before it begins
        check(status == 503 and answer["error"]["code"] == "deadline_exceeded" and int(headers["retry-after"]) >= 1, answer)
        check(took < 0.15, f"refused after {took:.3f} s")
        status, headers, answer, _ = ask(s, path="/v1/messages", messages=[{"role": "user", "content": "hi"}], max_tokens=5, timeout=0.05)
        check(status == 503 and answer["error"]["type"] == "overloaded_error", answer)
        load.join()
        check(s.metrics()["moed_prompt_tokens_total"] - prompt_tokens <= 12 * 4, "the late ones were computed")
    with Server.fake("--max-running", "1", step_us=20000) as s:  # this one knows nothing yet: it lets in, and gives up in time
        load = Load(s, 1, n=60)
        wait_running(s, 1)
        status, headers, answer, took = ask(s, timeout=0.2)
        check(status == 503 and answer["error"]["code"] == "deadline_exceeded" and "retry-after" in headers and took < 0.8, (answer, took))
        load.join()


def clients_that_stop_listening():
    """The read timeout of the official clients is a hint for whole answers; a stream is kept alive."""
    hint = [("X-Stainless-Read-Timeout", "1")]
    with busy_server() as s:
        load = Load(s, 40)
        wait_running(s, 40)
        status, headers, answer, _ = ask(s, hint)
        check(status == 503 and answer["error"]["code"] == "deadline_exceeded" and "listens" in answer["error"]["message"], answer)
        check(ask(s, [("X-Stainless-Read-Timeout", "600")])[0] == 200, "a patient client")
        for nonsense in ("NOT_GIVEN", "-1", "1e9", "", "99999999999999999999"):
            check(ask(s, [("X-Stainless-Read-Timeout", nonsense)], n=1)[0] == 200, nonsense)
        load.join()
        load = Load(s, 40)
        wait_running(s, 40)
        status, _, body, _ = ask(s, hint, stream=True, n=5)
        check(status == 200 and parse_events(body), body[-200:])
        load.join()


def queue_is_bounded_by_the_wait():
    with busy_server("--max-wait", "500ms") as s:
        results = Load(s, 60).join()
        served = [took for status, _, _, took in results if status == 200]
        refused = [(headers, answer, took) for status, headers, answer, took in results if status != 200]
        check(2 <= len(served) <= 20 and len(refused) >= 30, [r[0] for r in results])
        check(all(a["error"]["code"] == "queue_full" and int(h["retry-after"]) >= 1 for h, a, _ in refused), refused[0])
        check(max(served) < 3, f"one that was let in took {max(served):.2f} s")
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="x", max_retries=5)
        load = Load(s, 12)
        check(client.completions.create(model="", prompt="a", max_tokens=2).choices[0].finish_reason, "the official client comes back")
        load.join()


def told_and_seen():
    """A client that is refused is told how long it would have waited; one that was let in just before tells how long that is."""
    with busy_server("--max-queued", "30") as s:
        load = Load(s, 31)
        wait_running(s, 31)
        start, last = time.monotonic(), Load(s, 1)
        wait_running(s, 32)
        status, headers, answer, _ = ask(s)
        check(status == 429 and answer["error"]["code"] == "queue_full", answer)
        load.join()
        last.join()
        seen, told = time.monotonic() - start, int(headers["retry-after"])
        print(f"# told {told} s, seen {seen:.1f} s")
        check(seen / 2 - 1 <= told <= 2 * seen + 1, f"told {told} s, seen {seen:.1f} s")


def who_may_be_urgent():
    with tempfile.NamedTemporaryFile("w") as f:
        f.write(f"{ROOT} priority=-10\n{GUEST}\n")
        f.flush()
        with Server.fake("--api-key-file", f.name, "--max-running", "1", step_us=int(STEP_S * 1e6)) as s:
            root, guest = [("X-Api-Key", ROOT)], [("X-Api-Key", GUEST)]
            status, _, answer, _ = ask(s, guest, priority=-1)
            check(status == 403 and answer["error"]["type"] == "permission_error" and answer["error"]["param"] == "priority", answer)
            check(ask(s, guest, priority=5, n=1)[0] == 200 and ask(s, root, priority=-10, n=1)[0] == 200, "allowed ones")
            load = Load(s, 12, root)
            wait_running(s, 12, root)
            patient = Load(s, 1, root, priority=1)
            urgent = Load(s, 1, root, priority=-5)
            (status, _, _, took), = urgent.join()
            rest = load.join()
            check(status == 200 and took < max(t for _, _, _, t in rest) / 2, f"the urgent one took {took:.2f} s")
            (status, _, _, took), = patient.join()
            check(status == 200 and took > 0.1, "the patient one")
    with Server.fake() as s:
        check(ask(s, priority=-1)[0] == 403, "without keys nobody jumps the line")
        check(ask(s, priority=11)[0] == 400 and ask(s, priority=1, n=1)[0] == 200, "the range")


if __name__ == "__main__":
    sys.exit(run_cases(running_ones_end_as_cut, option_bounds_the_field, late_ones_are_not_computed, clients_that_stop_listening,
                       queue_is_bounded_by_the_wait, told_and_seen, who_may_be_urgent))
