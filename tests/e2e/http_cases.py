# SPDX-License-Identifier: Apache-2.0
"""What a byte stream means as HTTP/1.1: (name, bytes, expected statuses). Used by test_http.py over sockets, whole, byte
by byte and cut at random places, and written out as seeds for the fuzzer (python3 tests/e2e/http_cases.py DIR).

A list of statuses is the exact sequence of responses. Nothing may follow the last one: after a refusal the connection
ends, after accepted requests the client half-closes and the server has nothing left to say. -400: a payload that stops in
the middle of a request is answered only when the client half-closes. In the table TAIL stands for one more good request: where it is
expected to be answered, the framing of the one before it was understood; where it is not, it was never parsed."""

H = b"Host: x\r\n"
GET = b"GET /health HTTP/1.1\r\n" + H + b"\r\n"
TAIL = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: tail\r\n\r\n"
BODY = b'{"prompt":"hi","max_tokens":1}'
J = b"Content-Type: application/json\r\n"


def get(head=b"", target=b"/health", version=b"HTTP/1.1", host=H):
    return b"GET " + target + b" " + version + b"\r\n" + host + head + b"\r\n"


def post(head, body=b"", target=b"/v1/completions", version=b"HTTP/1.1"):
    return b"POST " + target + b" " + version + b"\r\n" + H + J + head + b"\r\n" + body


def chunked(raw, head=b""):
    return post(b"Transfer-Encoding: chunked\r\n" + head, raw)


def chunks(*parts):
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"


CL = b"Content-Length: %d\r\n" % len(BODY)
OK = [200]

CASES = [
    # ---- plain ----
    ("get", GET, [200]),
    ("get_then_tail", GET + TAIL, [200, 200]),
    ("post", post(CL, BODY) + TAIL, [200, 200]),
    ("pipelined_five", GET * 5, [200] * 5),
    ("header_case", get(b"hOsT2: y\r\nACCEPT: */*\r\n"), OK),
    ("value_white_space", get(b"X-A:   \t spaced \t \r\nX-B:\r\nX-C: \xc3\xa9\r\n"), OK),
    ("one_leading_crlf", b"\r\n" + GET, OK),
    ("two_leading_crlf", b"\r\n\r\n" + GET, OK),
    ("three_leading_crlf", b"\r\n\r\n\r\n" + GET, [400]),
    ("crlf_between_requests", GET + b"\r\n" + TAIL, [200, 200]),
    ("leading_lf", b"\n" + GET, [400]),
    ("leading_space", b" " + GET, [400]),
    # ---- request line ----
    ("two_spaces_after_method", b"GET  /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [400]),
    ("two_spaces_before_version", b"GET /health  HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [400]),
    ("space_after_version", b"GET /health HTTP/1.1 \r\n" + H + b"\r\n" + TAIL, [400]),
    ("tab_in_request_line", b"GET\t/health\tHTTP/1.1\r\n" + H + b"\r\n" + TAIL, [400]),
    ("lower_case_method", b"get /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [501]),
    ("unknown_method", b"BREW /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [501]),
    ("webdav_method", b"PROPFIND /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [501]),
    ("endless_method", b"A" * 40 + b" /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [501]),
    ("method_bad_char", b"GE{T /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [400]),
    ("http_09_simple", b"GET /health\r\n\r\n" + TAIL, [400]),
    ("http_09", get(version=b"HTTP/0.9") + TAIL, [505]),
    ("http_12", get(version=b"HTTP/1.2") + TAIL, [505]),
    ("http_20", get(version=b"HTTP/2.0") + TAIL, [505]),
    ("http_2_preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505]),
    ("http_11_1", get(version=b"HTTP/11.1") + TAIL, [400]),
    ("http_lower_case", get(version=b"http/1.1") + TAIL, [400]),
    ("version_junk", get(version=b"HTTP/1.x") + TAIL, [400]),
    ("version_missing", get(version=b"") + TAIL, [400]),
    ("raw_utf8_path", get(target=b"/h\xc3\xa9alth") + TAIL, [400]),
    ("control_in_path", get(target=b"/hea\x01lth") + TAIL, [400]),
    ("nul_in_path", get(target=b"/hea\x00lth") + TAIL, [400]),
    ("fragment", get(target=b"/health#x") + TAIL, [400]),
    ("uri_8k", get(target=b"/health?" + b"q" * (8192 - 8)) + TAIL, [200, 200]),
    ("uri_8k_1", get(target=b"/health?" + b"q" * (8192 - 7)) + TAIL, [414]),
    ("uri_40k", get(target=b"/" + b"q" * 40000) + TAIL, [414]),
    # ---- target ----
    ("query", get(target=b"/health?a=b&c=%00") + TAIL, [200, 200]),
    ("percent_decoded", get(target=b"/he%61lth") + TAIL, [200, 200]),
    ("percent_not_twice", get(target=b"/he%2561lth") + TAIL, [404, 200]),
    ("percent_nul", get(target=b"/health%00") + TAIL, [400]),
    ("percent_malformed", get(target=b"/health%zz") + TAIL, [400]),
    ("percent_cut", get(target=b"/health%6") + TAIL, [400]),
    ("encoded_slash", get(target=b"/v1%2fmodels") + TAIL, [404, 200]),
    ("double_slash", get(target=b"//health") + TAIL, [404, 200]),
    ("dot_segment", get(target=b"/./health") + TAIL, [404, 200]),
    ("dot_dot_segment", get(target=b"/v1/../health") + TAIL, [404, 200]),
    ("encoded_dots", get(target=b"/%2e/health") + TAIL, [404, 200]),
    ("semicolon", get(target=b"/health;a=b") + TAIL, [404, 200]),
    ("trailing_slash", get(target=b"/health/") + TAIL, [404, 200]),
    ("upper_case_path", get(target=b"/HEALTH") + TAIL, [404, 200]),
    ("absolute_form", get(target=b"http://x/health") + TAIL, [200, 200]),
    ("absolute_form_case", get(target=b"HTTP://X/health") + TAIL, [200, 200]),
    ("absolute_other_host", get(target=b"http://y/health") + TAIL, [400]),
    ("absolute_port_differs", get(target=b"http://x:80/health") + TAIL, [400]),
    ("absolute_userinfo", get(target=b"http://u@x/health") + TAIL, [400]),
    ("absolute_https", get(target=b"https://x/health") + TAIL, [400]),
    ("absolute_no_authority", get(target=b"http:///health") + TAIL, [400]),
    ("absolute_root", get(target=b"http://x") + TAIL, [200, 200]),
    ("relative_target", get(target=b"health") + TAIL, [400]),
    ("star_get", get(target=b"*") + TAIL, [400]),
    ("star_options", b"OPTIONS * HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [200, 200]),
    # ---- methods on routes ----
    ("options", b"OPTIONS /v1/completions HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [200, 200]),
    ("options_unknown_route", b"OPTIONS /nope HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [404, 200]),
    ("trace", b"TRACE /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [405, 200]),
    ("connect", b"CONNECT x:443 HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [405]),
    ("query_method", b"QUERY /health HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [405]),
    ("post_on_get_route", post(b"Content-Length: 0\r\n", target=b"/health") + TAIL, [405, 200]),
    ("post_on_get_route_body", post(CL, BODY, target=b"/health") + TAIL, [405]),
    ("get_on_post_route", get(target=b"/v1/completions") + TAIL, [405, 200]),
    ("delete", b"DELETE /v1/models/fake HTTP/1.1\r\n" + H + b"\r\n" + TAIL, [405, 200]),
    ("unknown_route_body", post(CL, BODY, target=b"/nope") + TAIL, [404]),
    ("chat_place", post(CL, BODY, target=b"/v1/chat/completions") + TAIL, [400, 200]),
    # ---- Host ----
    ("no_host", get(host=b"") + TAIL, [400]),
    ("no_host_10", get(host=b"", version=b"HTTP/1.0"), OK),
    ("two_hosts", get(host=H + H) + TAIL, [400]),
    ("two_hosts_differ", get(host=H + b"Host: y\r\n") + TAIL, [400]),
    ("two_hosts_10", get(host=H + H, version=b"HTTP/1.0"), [400]),
    ("host_space", get(host=b"Host: a b\r\n") + TAIL, [400]),
    ("host_list", get(host=b"Host: a,b\r\n") + TAIL, [400]),
    ("host_path", get(host=b"Host: a/b\r\n") + TAIL, [400]),
    ("host_ipv6", get(host=b"Host: [::1]:8080\r\n") + TAIL, [200, 200]),
    ("host_empty", get(host=b"Host:\r\n") + TAIL, [200, 200]),
    # ---- header lines ----
    ("obs_fold", get(b"X-A: b\r\n c\r\n") + TAIL, [400]),
    ("obs_fold_tab", get(b"X-A: b\r\n\tc\r\n") + TAIL, [400]),
    ("obs_fold_hides_length", post(b"X-A: b\r\n Content-Length: %d\r\n" % len(GET), GET), [400]),
    ("obs_fold_first_line", b"GET /health HTTP/1.1\r\n Host: x\r\n\r\n" + TAIL, [400]),
    ("empty_name", get(b": x\r\n") + TAIL, [400]),
    ("space_before_colon", get(b"X-A : b\r\n") + TAIL, [400]),
    ("space_before_colon_te", chunked(b"0\r\n\r\n").replace(b"Encoding:", b"Encoding :") + TAIL, [400]),
    ("no_colon", get(b"X-A\r\n") + TAIL, [400]),
    ("nul_in_name", get(b"X-\0A: b\r\n") + TAIL, [400]),
    ("nul_in_value", get(b"X-A: b\0c\r\n") + TAIL, [400]),
    ("control_in_value", get(b"X-A: b\x0bc\r\n") + TAIL, [400]),
    ("bare_cr_in_value", get(b"X-A: b\rc\r\n") + TAIL, [400]),
    ("bare_lf_line_end", get(b"X-A: b\n") + TAIL, [400]),
    ("bare_lf_everywhere", GET.replace(b"\r\n", b"\n") + TAIL, [400]),
    ("bare_cr_everywhere", GET.replace(b"\r\n", b"\r") + TAIL, [400]),
    ("crlf_cr_x", b"GET /health HTTP/1.1\r\nHost: x\r\n\rX" + TAIL, [400]),
    ("empty_name_cr", b"GET / HTTP/1.1\r\nHost: x\r\n\r:GET /health HTTP/1.1\r\n\r\n", [400]),
    ("name_bad_char", get(b"X(A): b\r\n") + TAIL, [400]),
    ("underscore_name", get(b"Content_Length: 5\r\n") + TAIL, [200, 200]),
    ("headers_100", get(b"".join(b"X-%d: y\r\n" % i for i in range(99))) + TAIL, [200, 200]),
    ("headers_101", get(b"".join(b"X-%d: y\r\n" % i for i in range(100))) + TAIL, [431]),
    ("head_too_large", get(b"X-A: " + b"y" * 33000 + b"\r\n") + TAIL, [431]),
    ("head_name_too_large", get(b"X" * 33000 + b": y\r\n") + TAIL, [431]),
    ("head_just_fits", get(b"X-A: " + b"y" * (32768 - len(get()) - 7) + b"\r\n") + TAIL, [200, 200]),
    ("head_one_over", get(b"X-A: " + b"y" * (32768 - len(get()) - 6) + b"\r\n") + TAIL, [431]),
    # ---- Content-Length ----
    ("cl_zero_get", get(b"Content-Length: 0\r\n") + TAIL, [200, 200]),
    ("get_with_body", get(CL) + BODY + TAIL, [400]),
    ("get_with_body_is_request", get(b"Content-Length: %d\r\n" % len(GET)) + GET + TAIL, [400]),
    ("get_chunked", get(b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n" + TAIL, [400]),
    ("cl_duplicate_equal", post(CL + CL, BODY) + TAIL, [400]),
    ("cl_duplicate", post(CL + b"Content-Length: 0\r\n", BODY) + TAIL, [400]),
    ("cl_list", post(b"Content-Length: 3, 3\r\n", b"abc") + TAIL, [400]),
    ("cl_plus", post(b"Content-Length: +3\r\n", b"abc") + TAIL, [400]),
    ("cl_minus", post(b"Content-Length: -1\r\n") + TAIL, [400]),
    ("cl_hex", post(b"Content-Length: 0x3\r\n", b"abc") + TAIL, [400]),
    ("cl_empty", post(b"Content-Length:\r\n") + TAIL, [400]),
    ("cl_space_inside", post(b"Content-Length: 3 3\r\n", b"abc") + TAIL, [400]),
    ("cl_overflow", post(b"Content-Length: 18446744073709551619\r\n", b"abc") + TAIL, [400]),
    ("cl_leading_zeros", post(b"Content-Length: 000%d\r\n" % len(BODY), BODY) + TAIL, [200, 200]),
    ("cl_too_large", post(b"Content-Length: 999999999\r\n", BODY) + TAIL, [413]),
    ("cl_missing", post(b"") + TAIL, [411, 200]),
    ("cl_missing_with_body", post(b"", BODY) + TAIL, [411, 400]),
    ("cl_body_short", post(b"Content-Length: 99\r\n", BODY), [-400]),
    ("cl_zero_body_is_tail", post(b"Content-Length: 0\r\n") + TAIL, [400, 200]),
    # ---- Transfer-Encoding ----
    ("te_chunked", chunked(chunks(BODY)) + TAIL, [200, 200]),
    ("te_mixed_case", chunked(chunks(BODY)).replace(b"chunked", b"ChUnKeD") + TAIL, [200, 200]),
    ("te_three_chunks", chunked(chunks(BODY[:3], BODY[3:4], BODY[4:])) + TAIL, [200, 200]),
    ("te_byte_chunks", chunked(chunks(*[BODY[i:i + 1] for i in range(len(BODY))])) + TAIL, [200, 200]),
    ("te_and_cl", post(CL + b"Transfer-Encoding: chunked\r\n", chunks(BODY)) + TAIL, [400]),
    ("cl_and_te", post(b"Transfer-Encoding: chunked\r\n" + CL, chunks(BODY)) + TAIL, [400]),
    ("te_http_10", post(b"Transfer-Encoding: chunked\r\n", chunks(BODY), version=b"HTTP/1.0") + TAIL, [400]),
    ("te_gzip_chunked", post(b"Transfer-Encoding: gzip, chunked\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_chunked_identity", post(b"Transfer-Encoding: chunked, identity\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_identity", post(b"Transfer-Encoding: identity\r\n", BODY) + TAIL, [501]),
    ("te_xchunked", post(b"Transfer-Encoding: xchunked\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_trailing_comma", post(b"Transfer-Encoding: chunked,\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_chunked_chunked", post(b"Transfer-Encoding: chunked, chunked\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_empty", post(b"Transfer-Encoding:\r\n", chunks(BODY)) + TAIL, [501]),
    ("te_twice", chunked(chunks(BODY), b"Transfer-Encoding: chunked\r\n") + TAIL, [400]),
    ("te_vt", post(b"Transfer-Encoding: \x0bchunked\r\n", chunks(BODY)) + TAIL, [400]),
    ("te_quoted", post(b'Transfer-Encoding: "chunked"\r\n', chunks(BODY)) + TAIL, [501]),
    ("te_obs_fold", post(b"Transfer-Encoding:\r\n chunked\r\n", chunks(BODY)) + TAIL, [400]),
    ("te_zero_length", chunked(b"0\r\n\r\n") + TAIL, [400, 200]),
    # ---- chunks ----
    ("chunk_leading_zeros", chunked(b"00000%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)) + TAIL, [200, 200]),
    ("chunk_16_digits", chunked(b"%016x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)) + TAIL, [200, 200]),
    ("chunk_17_digits", chunked(b"%017x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)) + TAIL, [400]),
    ("chunk_upper_hex", chunked(b"1E\r\n%b\r\n0\r\n\r\n" % BODY) + TAIL, [200, 200]),
    ("chunk_plus", chunked(b"+5\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_0x", chunked(b"0x5\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_space", chunked(b"5 \r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_leading_space", chunked(b" 5\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_empty_size", chunked(b"\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_minus", chunked(b"-1\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_overflow", chunked(b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n") + TAIL, [413]),
    ("chunk_too_large", chunked(b"7fffffff\r\nhello") + TAIL, [413]),
    ("chunk_lf_only", chunked(b"5\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_data_lf_only", chunked(b"5\r\nhello\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_data_xx", chunked(b"5\r\nhelloXX0\r\n\r\n") + TAIL, [400]),
    ("chunk_data_long", chunked(b"5\r\nhello!\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_ext", chunked(b"%x;a=b\r\n%b\r\n0;last\r\n\r\n" % (len(BODY), BODY)) + TAIL, [200, 200]),
    ("chunk_ext_lf", chunked(b"5;a\nb\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_ext_cr", chunked(b"5;a\rb\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_ext_nul", chunked(b"5;a\0b\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_ext_flood", chunked(b"5;" + b"a" * 5000 + b"\r\nhello\r\n0\r\n\r\n") + TAIL, [400]),
    ("chunk_ext_flood_last", chunked(b"0;" + b"a" * 5000 + b"\r\n\r\n") + TAIL, [400]),
    ("chunk_flood", chunked(chunks(*[b" "] * 4000)) + TAIL, [400]),
    ("chunk_missing_last", chunked(b"5\r\nhello\r\n"), [-400]),
    ("chunk_missing_end", chunked(b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)), [-400]),
    ("chunk_missing_lf", chunked(b"%x\r\n%b\r\n0\r\n\r" % (len(BODY), BODY)), [-400]),
    ("chunk_end_bare_lf", chunked(b"%x\r\n%b\r\n0\r\n\n" % (len(BODY), BODY)) + TAIL, [400]),
    # ---- trailers ----
    ("trailer", chunked(chunks(BODY)[:-2] + b"X-Sum: 1\r\n\r\n") + TAIL, [200, 200]),
    ("trailer_cl_ignored", chunked(chunks(BODY)[:-2] + b"Content-Length: 60\r\n\r\n") + TAIL, [200, 200]),
    ("trailer_te_ignored", chunked(chunks(BODY)[:-2] + b"Transfer-Encoding: chunked\r\n\r\n") + TAIL, [200, 200]),
    ("trailer_host_ignored", chunked(chunks(BODY)[:-2] + b"Host: y\r\n\r\n") + TAIL, [200, 200]),
    ("trailer_obs_fold", chunked(chunks(BODY)[:-2] + b"X-A: b\r\n c\r\n\r\n") + TAIL, [400]),
    ("trailer_no_colon", chunked(chunks(BODY)[:-2] + b"GET /health HTTP/1.1\r\n\r\n") + TAIL, [400]),
    ("trailer_flood_count", chunked(chunks(BODY)[:-2] + b"X: y\r\n" * 120 + b"\r\n") + TAIL, [431]),
    ("trailer_flood_bytes", chunked(chunks(BODY)[:-2] + b"X: " + b"y" * 33000 + b"\r\n\r\n") + TAIL, [431]),
    # ---- Connection, Upgrade, versions ----
    ("close", get(b"Connection: close\r\n") + TAIL, [200]),
    ("close_tab", get(b"Connection: close\t\r\n") + TAIL, [200]),
    ("close_in_list", get(b"Connection: foo , CLOSE\r\n") + TAIL, [200]),
    ("close_second_header", get(b"Connection: keep-alive\r\nConnection: close\r\n") + TAIL, [200]),
    ("close_is_a_token", get(b"Connection: closed\r\n") + TAIL, [200, 200]),
    ("http_10", get(version=b"HTTP/1.0") + TAIL, [200]),
    ("http_10_keep_alive", get(b"Connection: keep-alive\r\n", version=b"HTTP/1.0") + TAIL, [200, 200]),
    ("upgrade_h2c", get(b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n") + TAIL, [200, 200]),
    ("upgrade_with_body", post(b"Connection: upgrade\r\nUpgrade: websocket\r\n" + CL, BODY) + TAIL, [200, 200]),
    # ---- Expect ----
    ("expect_continue", post(b"Expect: 100-continue\r\n" + CL, BODY) + TAIL, [100, 200, 200]),
    ("expect_case", post(b"Expect: 100-Continue\r\n" + CL, BODY) + TAIL, [100, 200, 200]),
    ("expect_no_body", post(b"Expect: 100-continue\r\nContent-Length: 0\r\n") + TAIL, [400, 200]),
    ("expect_unknown", post(b"Expect: tea\r\n" + CL, BODY) + TAIL, [417]),
    ("expect_list", post(b"Expect: 100-continue, tea\r\n" + CL, BODY) + TAIL, [417]),
    ("expect_http_10", post(b"Expect: 100-continue\r\n" + CL, BODY, version=b"HTTP/1.0"), [200]),
    ("expect_unknown_route", post(b"Expect: 100-continue\r\n" + CL, b"", target=b"/nope"), [404]),
    ("expect_too_large", post(b"Expect: 100-continue\r\nContent-Length: 999999999\r\n", b""), [413]),
    ("expect_wrong_type", post(b"Expect: 100-continue\r\n" + CL, b"").replace(J, b"Content-Type: text/plain\r\n"), [415]),
    # ---- media type ----
    ("type_missing", post(CL, BODY).replace(J, b"") + TAIL, [200, 200]),
    ("type_charset", post(CL, BODY).replace(b"/json\r", b"/json; charset=utf-8\r") + TAIL, [200, 200]),
    ("type_form", post(CL, BODY).replace(b"application/json", b"application/x-www-form-urlencoded") + TAIL, [415]),
    ("type_multipart", post(CL, BODY).replace(b"application/json", b"multipart/form-data; boundary=x") + TAIL, [415]),
    # ---- not HTTP ----
    ("tls_hello", bytes.fromhex("16030100c8010000c40303") + bytes(32), [400]),
    ("binary", bytes(range(256)), [400]),
    ("half_request_line", b"GET /hea", [-400]),
    ("half_head", b"GET /health HTTP/1.1\r\nHost: x\r\n", [-400]),
    ("nothing", b"", []),
]

assert len({name for name, _, _ in CASES}) == len(CASES)

if __name__ == "__main__":
    import os
    import sys

    for name, data, _ in CASES:
        if len(data) < 2000:
            with open(os.path.join(sys.argv[1], name), "wb") as f:
                f.write(b"\0" + data)
